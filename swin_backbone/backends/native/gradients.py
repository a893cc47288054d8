"""One autograd function for all operators."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from ..functions.gradients import gradients_by_autograd, needs_autograd


class Operator(torch.autograd.Function):
    """Compute by a compiled operator, and its gradients by another.

    `operate(compute, gradients, by_torch, *tensors)` returns the output of `compute(*tensors)`.

    Args:
        compute: of the tensors; it returns the output, and tensors that are stored beside its input and weights.
        gradients: of the output's gradient, a flag for each tensor whether its gradient is needed, the tensors, and
            what else is stored; it returns a gradient for each tensor, and may do so for those that need none.
        by_torch: computes the same output from the tensors by functions that autograd sees.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Sequence[Tensor]],
        gradients: Callable[..., Sequence[Optional[Tensor]]],
        by_torch: Callable[..., Tensor],
        *tensors: Optional[Tensor],
    ) -> Tensor:
        output, *more = compute(*tensors)
        ctx.save_for_backward(*tensors, *more)
        ctx.gradients, ctx.by_torch = gradients, by_torch
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        stored, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if needs_autograd(grad):
            return None, None, None, *gradients_by_autograd(ctx.by_torch, stored[: len(needed)], needed, grad)
        grads = ctx.gradients(grad.contiguous(), needed, *stored)
        return None, None, None, *(g if n else None for g, n in zip(grads, needed))


operate: Callable[..., Tensor] = Operator.apply
