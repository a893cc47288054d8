"""One autograd function for all operators."""

import torch


class Operator(torch.autograd.Function):
    """Compute by a compiled operator, and its gradients by another. Only the input and weights are stored.

    `Operator.apply(compute, gradients, by_torch, *tensors)` is `compute(*tensors)`.

    Args:
        compute: of the tensors.
        gradients: of the output's gradient, a flag for each tensor whether its gradient is needed, and the tensors;
            it returns a gradient for each tensor, and may do so for those that need none.
        by_torch: computes the same as `compute` by functions that have second derivatives.
    """

    @staticmethod
    def forward(ctx, compute, gradients, by_torch, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.gradients, ctx.by_torch = gradients, by_torch
        return compute(*tensors)

    @staticmethod
    def backward(ctx, grad):
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # a second derivative is needed
            inputs = [tensor for tensor, n in zip(tensors, needed) if n]
            found = iter(torch.autograd.grad(ctx.by_torch(*tensors), inputs, grad, create_graph=True))
            return None, None, None, *(next(found) if n else None for n in needed)
        grads = ctx.gradients(grad.contiguous(), needed, *tensors)
        return None, None, None, *(g if n else None for g, n in zip(grads, needed))
