"""The kernels of a bias and a GELU as custom operators of torch; torch.compile and export treat each as one operator.

Layout: T tokens, D hidden channels, P programs that share the tokens.
"""

# ruff: noqa: UP006, UP035 - torch 2.4 infers an operator's schema from these names alone
from typing import Tuple

import torch
from torch import Tensor

from ..functions.gradients import Context
from .attention import on_device
from .residual import programs_of

TILE = dict(R=16, C=256, num_warps=4)


@torch.library.custom_op('swin_backbone::bias_gelu', mutates_args=())
def bias_gelu(hidden_TD: Tensor, bias_D: Tensor) -> Tensor:
    """GELU(hidden + bias), exact, in hidden's dtype. For backward it stores only its inputs."""
    from .kernels.gelu import bias_gelu_forward

    hidden_TD = hidden_TD.contiguous()
    tokens, channels = hidden_TD.shape
    out_TD = torch.empty_like(hidden_TD)
    with on_device(hidden_TD.device):
        bias_gelu_forward[(-(-tokens // TILE['R']), -(-channels // TILE['C']))](
            hidden_TD, bias_D, out_TD, tokens, channels, **TILE
        )
    return out_TD


@bias_gelu.register_fake
def _(hidden_TD: Tensor, bias_D: Tensor) -> Tensor:
    return hidden_TD.new_empty(hidden_TD.shape)


@torch.library.custom_op('swin_backbone::bias_gelu_backward', mutates_args=())
def bias_gelu_backward(grad_TD: Tensor, hidden_TD: Tensor, bias_D: Tensor) -> Tuple[Tensor, Tensor]:
    """The gradients of `bias_gelu`'s hidden and bias."""
    from .kernels.gelu import bias_gelu_backward as kernel

    grad_TD, hidden_TD = grad_TD.contiguous(), hidden_TD.contiguous()
    tokens, channels = hidden_TD.shape
    columns = -(-channels // TILE['C'])
    programs = max(1, min(-(-tokens // TILE['R']), programs_of(hidden_TD.device) // columns))
    grad_hidden_TD = torch.empty_like(hidden_TD)
    sums_PD = hidden_TD.new_empty((programs, channels), dtype=torch.float32)
    with on_device(hidden_TD.device):
        kernel[(programs, columns)](grad_TD, hidden_TD, bias_D, grad_hidden_TD, sums_PD, tokens, channels, **TILE)
    return grad_hidden_TD, sums_PD.sum(0).to(bias_D.dtype)


@bias_gelu_backward.register_fake
def _(grad_TD: Tensor, hidden_TD: Tensor, bias_D: Tensor) -> Tuple[Tensor, Tensor]:
    return hidden_TD.new_empty(hidden_TD.shape), bias_D.new_empty(bias_D.shape)


def _keep_for_backward(ctx: Context, inputs: Tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Context, grad_TD: Tensor) -> Tuple[Tensor, Tensor]:
    grads: Tuple[Tensor, Tensor] = bias_gelu_backward(grad_TD, *ctx.saved_tensors)
    return grads


bias_gelu.register_autograd(_backward, setup_context=_keep_for_backward)
