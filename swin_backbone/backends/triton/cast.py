"""Cast the weights of linear layers to the dtype of automatic mixed precision, all weights of a block in one launch."""

from typing import Any, Optional

import torch
from torch import Tensor, distributed

from ...compat import foreach_copy
from ..weight_cache import WeightCache


def cast_weights(cache: WeightCache, weights: list[Any], dtype: torch.dtype) -> list[Any]:
    """The weights of a layer in `dtype`, None for None. Gradients flow back to the weights.

    The casts are kept only where no gradient is needed. In a process group nothing is kept, since FSDP changes values
    without changing a parameter's version.
    """
    there = iter(_cast_all(cache, [weight for weight in weights if weight is not None], dtype))
    return [None if weight is None else next(there) for weight in weights]


def _cast_all(cache: WeightCache, weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
        cache.clear()
        return list(_Cast.apply(dtype, *weights))
    if any(weight.is_inference() for weight in weights) or _in_a_group():
        return _cast(weights, dtype)
    return cache.keep(weights, (dtype,), lambda: _cast(weights, dtype))


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
