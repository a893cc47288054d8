"""The gradient of layer norm.

Layout: T tokens, C channels.
"""

from typing import Callable, Optional

import torch
from torch import Tensor

from .sums import GradientSums


def layer_norm_vjp(
    x_TC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float, sums: GradientSums, name: str
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Layer norm, and its gradient; those of weight and bias are added to `sums` behind `name`."""
    C = x_TC.shape[-1:]
    normed_TC, mean, rstd = torch.ops.aten.native_layer_norm(x_TC, C, weight, bias, eps)

    def vjp(grad_TC: Tensor) -> Tensor:
        wanted = (True, f'{name}_weight' in sums.wanted, f'{name}_bias' in sums.wanted)
        grad_TC, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
            grad_TC.to(x_TC.dtype), x_TC, C, mean, rstd, weight, bias, wanted
        )
        sums.add(f'{name}_weight', grad_weight)
        sums.add(f'{name}_bias', grad_bias)
        return grad_TC

    return normed_TC, vjp
