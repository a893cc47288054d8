"""What computes in the place of torch: the compiled library on CPUs, and a Triton kernel on GPUs.

An import of `swin` and `triton` registers the replacements (`swin_backbone.replace`). Models compute the same numbers
without this package.

A call of a Swin layer goes this way to the compiled library:

1. `dispatch` in replace.py calls the `make_plan` that is registered for the forward: one of `swin/swin_layers.py`.
2. `plan_module` in `native/plans.py` reads the module into a `NativeLayer`: its computation (`native/layers.py`) and
   its tensors. `changes.read_once` caches this until the module changes. What the library does not compute gives a
   reason, a sentence.
3. `plan_layer` checks the tensors, packs weights or takes the packed ones, and fills a structure of csrc/swin.h. The
   result is a plan.
4. The plan takes the arguments of the call, and calls the library. With gradients, an autograd function does so; in a
   graph, a custom operator of `native/operators.py`.

A layer of another package, changed by `accelerate`, begins at `try_native` in `swin/foreign.py` in place of steps 1 and
2. `swin/foreign_calls.py` reads its arguments.
"""

from ..models import layers as layers  # first: models import the replacements, which import windows and blocks
