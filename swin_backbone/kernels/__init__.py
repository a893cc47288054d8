"""What computes in the place of torch: the compiled library on CPUs, and a Triton kernel on GPUs.

An import of `swin` and `triton` registers the replacements (`swin_backbone.replace`). Models compute the same numbers
without this package.

A call of a stage goes this way to the compiled library:

1. `dispatch` in replace.py calls the `make_plan` that is registered for the forward: `plan_stage` of
   `swin/swin_layers.py`.
2. `plan_module` in `native/plans.py` gets the recipe of the stage, which `read_stage` reads: for each block a
   computation (`native/computations.py`) and its tensors. `changes.read_once` keeps the recipe until the stage changes.
   For a stage that the library does not compute, `read_stage` raises `Unsupported`, and `plan_module` returns the
   reason, a sentence, in place of a plan.
3. The recipe makes a plan for the shape of the maps (`plan`): for each block, `BlockComputation.prepare` checks the
   tensors, takes the packed weights, which `make_once` of `native/memory.py` packs if they changed, and fills a
   `swin_block` of csrc/swin.h.
4. `dispatch` runs the plan. For each block, `BlockComputation.forward` calls `swin_block_forward`; csrc/README.md
   continues there. With gradients, `_Function` of `native/plans.py` calls it; in a graph, an operator of
   `native/operators.py`.
5. In backward, `_Function` prepares again: it keeps no packed weights, but the cache usually has them. It calls the
   library for the gradients of the input and of the library's weights. Autograd continues from these to the parameters:
   back through the table of position biases, in V2 through the MLP of positions. Under `create_graph` and vmap, torch
   computes the gradients.

A recipe is kept until the module changes. A plan is for one call. A computation has the settings, and calls the
library. `prepared` has the structures of csrc/swin.h for a shape.

A layer of another package, changed by `accelerate`, begins at `try_native` in `foreign/foreign_layers.py` in place of
steps 1 and 2. `foreign/calls.py` reads its arguments.
"""

# models/__init__ imports kernels.swin, which imports models.layers: models must begin to load first, whichever package
# is imported first.
from ..models import layers as layers
