"""Cast the weights of linear layers to the dtype of automatic mixed precision, all weights of a block in one launch."""

from typing import Any, Optional

import torch
from torch import Tensor, distributed

from ..compat import address, foreach_copy


class CastWeights:
    """Casts the weights of one module, and keeps the casts as long as the weights do not change.

    The casts are kept only where no gradient is needed. They are made again when a weight is another tensor, has other
    memory or another dtype, or was changed in place. Writes through `.data`, as by mmengine's EMAHook, do not change a
    tensor's version, so a module's `train` and `_apply` call `clear`. In a process group nothing is kept, since FSDP
    changes values without changing a parameter's version. Copies and pickles of a module do not include the casts.
    """

    def __init__(self) -> None:
        self._made: Optional[tuple[tuple, list[Tensor]]] = None

    def get(self, weights: list[Any], dtype: torch.dtype) -> list[Any]:
        """The weights in `dtype`, None for None. Gradients flow back to the weights."""
        there = iter(self._get([weight for weight in weights if weight is not None], dtype))
        return [None if weight is None else next(there) for weight in weights]

    def _get(self, weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            self._made = None
            return list(_Cast.apply(dtype, *weights))
        if any(weight.is_inference() for weight in weights) or _in_a_group():
            return _cast(weights, dtype)
        key = dtype, *((id(w), address(w), w._version, w.dtype, w.shape) for w in weights)
        made = self._made  # read once: another thread may replace it
        if made is None or made[0] != key:
            self._made = None  # first free the old copy, so that there are never two
            with torch.inference_mode(False):
                self._made = made = key, _cast(weights, dtype)
        return made[1]

    def clear(self) -> None:
        """Forget the casts."""
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
