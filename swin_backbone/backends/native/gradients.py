"""One autograd function for all operators."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from ...compat import is_batched


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


def needs_autograd(grad: Tensor) -> bool:
    """Whether a backward must be computed by operations that autograd sees.

    They have a second derivative (`create_graph=True`), and take a batch of gradients at once, as for a vectorised
    Jacobian. The compiled operators do neither.
    """
    return torch.is_grad_enabled() or is_batched(grad)


def gradients_by_autograd(
    function: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], needed: Sequence[bool], grad: Tensor
) -> list[Optional[Tensor]]:
    """The gradient of `function(*tensors)` by each tensor, None where it is not needed.

    Args:
        grad: of the function's output.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # A tensor may be computed from another: where two layers share a weight, the input of the second is. As views
        # they are apart, so that the gradient of the weight leaves out what reaches it by way of the input.
        views = [t.view_as(t) if t is not None and n else t for t, n in zip(tensors, needed)]
        y = function(*views)
    inputs = [view for view, n in zip(views, needed) if n]
    found = iter(torch.autograd.grad(y, inputs, grad, create_graph=create_graph))  # type: ignore[arg-type]
    return [next(found) if n else None for n in needed]
