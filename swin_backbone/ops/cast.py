"""The weights of linear layers in the dtype of automatic mixed precision: all of a block's in one launch."""

from typing import Any, Optional

import torch
from torch import Tensor, distributed

from ..compat import foreach_copy


class CastWeights:
    """Casts the weights of one module, and remembers them while nothing can have changed them.

    They are remembered where no gradient is wanted, and cast again when a weight is another tensor, in other memory, of
    another dtype, or changed in place. What is written through `.data`, as mmengine's EMAHook does, no version counts:
    a module's `train` and `_apply` `clear` them. In a process group nothing is remembered, as FSDP exchanges values
    behind a parameter's version. Copies and pickles of a module leave them out.
    """

    def __init__(self) -> None:
        self._made: Optional[tuple[tuple, list[Tensor]]] = None

    def get(self, weights: list[Any], dtype: torch.dtype) -> list[Any]:
        """The weights in `dtype`, None for None; gradients go to the weights."""
        there = iter(self._get([weight for weight in weights if weight is not None], dtype))
        return [None if weight is None else next(there) for weight in weights]

    def _get(self, weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            self._made = None
            return list(_Cast.apply(dtype, *weights))
        if any(weight.is_inference() for weight in weights) or _in_a_group():
            return _cast(weights, dtype)
        key = dtype, *((id(w), w.data_ptr(), w._version, w.dtype, w.shape) for w in weights)
        made = self._made  # once: another thread may exchange it
        if made is None or made[0] != key:
            self._made = None  # first, so that there are never two
            with torch.inference_mode(False):
                self._made = made = key, _cast(weights, dtype)
        return made[1]

    def clear(self) -> None:
        """Forget them."""
        self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'_made': None}


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype, *weights):
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(_cast(weights, dtype))

    @staticmethod
    def backward(ctx, *grads):
        wanted = [i for i, grad in enumerate(grads) if grad is not None and ctx.needs_input_grad[i + 1]]
        found: list[Optional[Tensor]] = [None] * len(grads)
        copies = [torch.empty_like(grads[i], dtype=ctx.dtypes[i]) for i in wanted]
        if wanted:
            foreach_copy(copies, [grads[i] for i in wanted])
        for i, copy in zip(wanted, copies):
            found[i] = copy
        return None, *found


def _cast(weights, dtype: torch.dtype) -> list[Tensor]:
    with torch.no_grad():
        copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        foreach_copy(copies, list(weights))
    return copies


def _in_a_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()
