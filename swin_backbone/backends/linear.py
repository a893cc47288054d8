"""A linear layer and the activation behind it, in the dtype that automatic mixed precision asks for.

Layout: T tokens, C channels in, D channels out.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends import mkldnn

from ..compat import onednn_linear


def linear(
    x_TC: Tensor,
    weight_DC: Tensor,
    bias_D: Optional[Tensor],
    activation: Optional[Callable[[Tensor], Tensor]] = None,
    gradient_only: bool = False,
) -> Tensor:
    """activation(x W^T + b): (T, D), in the dtype of the weight.

    Args:
        gradient_only: only the gradient is needed; the value need not be computed.
    """
    y_TD = F.linear(x_TC.to(weight_DC.dtype), weight_DC, bias_D)
    return y_TD if activation is None else activation(y_TD)


def eager_linear(
    x_TC: Tensor,
    weight_DC: Tensor,
    bias_D: Optional[Tensor],
    activation: Optional[Callable[[Tensor], Tensor]] = None,
    gradient_only: bool = False,
) -> Tensor:
    """The same, for eager PyTorch alone: in float32 on a CPU by oneDNN, whose GEMM is quicker on slim matrices."""
    if (
        onednn_linear is None
        or weight_DC.dtype != torch.float32
        or weight_DC.device.type != 'cpu'
        or not mkldnn.enabled
    ):
        return linear(x_TC, weight_DC, bias_D, activation)
    x_TC = x_TC.to(weight_DC.dtype)
    if torch.is_grad_enabled() and (x_TC.requires_grad or weight_DC.requires_grad):
        y_TD = _Linear.apply(x_TC, weight_DC, bias_D, gradient_only)
    elif isinstance(activation, nn.GELU):
        return onednn_linear(x_TC, weight_DC, bias_D, 'gelu', [], activation.approximate)
    else:
        y_TD = onednn_linear(x_TC, weight_DC, bias_D, 'none', [], '')
    return y_TD if activation is None else activation(y_TD)


def autocast_dtype(device_type: str) -> Optional[torch.dtype]:
    """The dtype automatic mixed precision computes linear layers in; None where it is off, or the device has none."""
    if _has_autocast(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


@torch.compiler.assume_constant_result  # which torch.compile of torch 2.11 cannot trace
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


def without_autocast(device_type: str) -> AbstractContextManager:
    """Turn autocast off: operations keep the dtypes of their inputs."""
    is_on = _has_autocast(device_type) and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_on else nullcontext()


class _Linear(torch.autograd.Function):
    """The gradient that oneDNN's function lacks."""

    @staticmethod
    def forward(ctx, x_TC, weight_DC, bias_D, gradient_only):
        ctx.save_for_backward(x_TC, weight_DC)
        if gradient_only:
            return x_TC.new_empty(x_TC.shape[0], weight_DC.shape[0])
        return onednn_linear(x_TC, weight_DC, bias_D, 'none', [], '')

    @staticmethod
    def backward(ctx, grad_TD):
        (x_TC, weight_DC), (needs_x, needs_weight, needs_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        grad_weight_DC = None
        if needs_weight:  # BLAS is a fifth quicker with the longer side in front
            wide = weight_DC.shape[0] >= weight_DC.shape[1]
            grad_weight_DC = grad_TD.t() @ x_TC if wide else (x_TC.t() @ grad_TD).t()
        grad_x_TC = eager_linear(grad_TD, weight_DC.t(), None) if needs_x else None
        return grad_x_TC, grad_weight_DC, grad_TD.sum(0) if needs_bias else None, None
