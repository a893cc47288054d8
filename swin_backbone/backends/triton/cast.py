"""Cast the weights of linear layers to the dtype of automatic mixed precision, all weights of a block in one launch."""

from collections.abc import Sequence
from typing import Optional, Protocol

import torch
from torch import Tensor

from ...compat import foreach_copy
from ..functions.gradients import Context


def cast_together(weights: Sequence[Optional[Tensor]], dtype: torch.dtype) -> list[Optional[Tensor]]:
    """The weights in `dtype`, None for None. Gradients flow back to the weights.

    Nothing is kept: what writes a weight may leave no trace in it (fused optimizers, `.data`), and reading all of it to
    find out takes as long as casting it.
    """
    given = [weight for weight in weights if weight is not None]
    there = iter(_Cast.apply(dtype, *given))  # type: ignore[no-untyped-call]  # torch has no types for it
    return [None if weight is None else next(there) for weight in weights]


class _Stored(Context, Protocol):
    dtypes: list[torch.dtype]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Stored, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [weight.dtype for weight in weights]
        copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        foreach_copy(copies, list(weights))
        return tuple(copies)

    @staticmethod
    def backward(ctx: _Stored, *grads: Tensor) -> tuple[Optional[Tensor], ...]:
        wanted = [i for i, grad in enumerate(grads) if grad is not None and ctx.needs_input_grad[i + 1]]
        found: list[Optional[Tensor]] = [None] * len(grads)
        copies = [torch.empty_like(grads[i], dtype=ctx.dtypes[i]) for i in wanted]
        if wanted:
            foreach_copy(copies, [grads[i] for i in wanted])
        for i, copy in zip(wanted, copies):
            found[i] = copy
        return None, *found
