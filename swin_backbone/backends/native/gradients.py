"""One autograd function for all operators."""

import torch


class Operator(torch.autograd.Function):
    """Compute by a compiled operator, and its gradients by another.

    `Operator.apply(compute, gradients, by_torch, *tensors)` returns the output of `compute(*tensors)`.

    Args:
        compute: of the tensors; it returns the output, and tensors that are stored beside its input and weights.
        gradients: of the output's gradient, a flag for each tensor whether its gradient is needed, the tensors, and
            what else is stored; it returns a gradient for each tensor, and may do so for those that need none.
        by_torch: computes the same output from the tensors by functions that have second derivatives.
    """

    @staticmethod
    def forward(ctx, compute, gradients, by_torch, *tensors):
        output, *more = compute(*tensors)
        ctx.save_for_backward(*tensors, *more)
        ctx.gradients, ctx.by_torch = gradients, by_torch
        return output

    @staticmethod
    def backward(ctx, grad):
        stored, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # a second derivative is needed
            tensors = stored[: len(needed)]
            inputs = [tensor for tensor, n in zip(tensors, needed) if n]
            found = iter(torch.autograd.grad(ctx.by_torch(*tensors), inputs, grad, create_graph=True))
            return None, None, None, *(next(found) if n else None for n in needed)
        grads = ctx.gradients(grad.contiguous(), needed, *stored)
        return None, None, None, *(g if n else None for g, n in zip(grads, needed))
