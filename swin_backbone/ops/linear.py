"""A linear layer and the activation behind it, and the gradient of a linear layer.

On a CPU in float32 it goes through oneDNN, whose GEMM is quicker than `F.linear`'s on slim matrices and applies
GELU while a tile is in registers.

Layout: T tokens, C channels in, D channels out.
"""

from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .autocast import is_autocast_on
from .sums import GradientSums

_onednn_linear = getattr(torch.ops.mkldnn, '_linear_pointwise', None)


def linear(
    x_TC: Tensor,
    weight_DC: Tensor,
    bias_D: Optional[Tensor],
    activation: Optional[Callable[[Tensor], Tensor]] = None,
) -> Tensor:
    """activation(x W^T + b): (T, D), in the dtype of the weight."""
    x_TC = x_TC.to(weight_DC.dtype)
    if _by_onednn(x_TC, weight_DC):
        if isinstance(activation, nn.GELU):
            return _onednn_linear(x_TC, weight_DC, bias_D, 'gelu', [], activation.approximate)
        y_TD = _onednn_linear(x_TC, weight_DC, bias_D, 'none', [], '')
    else:
        y_TD = F.linear(x_TC, weight_DC, bias_D)
    return y_TD if activation is None else activation(y_TD)


def linear_backward(grad_TD: Tensor, x_TC: Tensor, weight_DC: Tensor, sums: GradientSums, name: str) -> Tensor:
    """The gradient of x in x W^T + b: (T, C); those of W and b are added to `sums` behind `name`."""
    add_linear_gradients(grad_TD, x_TC, weight_DC, sums, name)
    return linear(grad_TD, weight_DC.t(), None)


def add_linear_gradients(grad_TD: Tensor, x_TC: Tensor, weight_DC: Tensor, sums: GradientSums, name: str) -> None:
    """Add the gradients of W and b in x W^T + b to `sums` behind `name`."""
    grad_TD = grad_TD.to(weight_DC.dtype)
    sums.add_product(f'{name}_weight', grad_TD, x_TC)
    sums.add_rows(f'{name}_bias', grad_TD)


def _by_onednn(x_TC: Tensor, weight_DC: Tensor) -> bool:
    """oneDNN's function has no gradient of its own, and is not for graphs that leave this machine."""
    return (
        not torch.compiler.is_compiling()
        and _onednn_linear is not None
        and x_TC.device.type == 'cpu'
        and x_TC.dtype == torch.float32
        and torch.backends.mkldnn.enabled
        and not torch.jit.is_tracing()
        and not (torch.is_grad_enabled() and (x_TC.requires_grad or weight_DC.requires_grad))
        and not is_autocast_on('cpu')
    )
