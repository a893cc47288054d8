"""What this package uses of torch and mmengine beyond their public interfaces, each with what happens without it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

# oneDNN's linear layer, which inductor calls: GELU is applied while a tile is in registers. Without it: `F.linear`.
onednn_linear: Any = getattr(torch.ops.mkldnn, '_linear_pointwise', None)


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules of the process. Without torch's function: as if there were none."""
    ask = getattr(nn.modules.module, '_has_any_global_hook', None)
    return bool(ask and ask())


def is_transformed() -> bool:
    """Whether `torch.func` (grad, vmap, jvp, ...) or forward-mode AD is at work. Without torch's functions: no."""
    if torch.compiler.is_compiling():  # which sees what a transform does, and not the transform
        return False
    peek = getattr(getattr(torch._C, '_functorch', None), 'peek_interpreter_stack', None)
    level = getattr(torch.autograd.forward_ad, '_current_level', -1)
    return level >= 0 or (peek is not None and peek() is not None)


def without_dispatch_modes() -> AbstractContextManager:
    """Leave the modes (of fake tensors, counters) that are active now. Without torch's function: stay in them."""
    from torch.utils import _python_dispatch

    disable = getattr(_python_dispatch, '_disable_current_modes', None)
    return disable() if disable else nullcontext()
