"""A Swin V2 block on the tokens of some windows, and its gradient: the branches of `block`, normalised behind.

Layout: T tokens, C channels.
"""

import torch.nn.functional as F
from torch import Tensor

from .block import (
    BlockSettings,
    BlockWeights,
    attention_branch,
    attention_branch_vjp,
    drop_path,
    mlp_branch,
    mlp_branch_vjp,
)
from .norm import layer_norm_vjp
from .sums import GradientSums
from .windows import Strip


def swin_v2_block(x_TC: Tensor, strip: Strip, w: BlockWeights, settings: BlockSettings) -> Tensor:
    """One Swin V2 block (Liu et al. 2022, figure 1) on the tokens of a strip: (T, C)."""
    C, eps = x_TC.shape[-1:], settings.eps
    y_TC = F.layer_norm(attention_branch(x_TC, strip, w, settings), C, w.norm1_weight, w.norm1_bias, eps[0])
    x_TC = x_TC + drop_path(y_TC, w, 0, strip)
    y_TC = F.layer_norm(mlp_branch(x_TC, w, settings), C, w.norm2_weight, w.norm2_bias, eps[1])
    x_TC = x_TC + drop_path(y_TC, w, 1, strip)
    return F.layer_norm(x_TC, C, w.norm3_weight, w.norm3_bias, eps[2]) if len(eps) == 3 else x_TC


def swin_v2_block_backward(
    grad_TC: Tensor, x_TC: Tensor, strip: Strip, w: BlockWeights, sums: GradientSums, settings: BlockSettings
) -> Tensor:
    """The gradient of `swin_v2_block`'s input, from that of its output, computing again what lies between."""
    y_TC, attention_vjp = attention_branch_vjp(x_TC, strip, w, settings, sums)
    y_TC, norm1_vjp = layer_norm_vjp(y_TC, w.norm1_weight, w.norm1_bias, settings.eps[0], sums, 'norm1')
    x_TC = x_TC + drop_path(y_TC, w, 0, strip)
    y_TC, mlp_vjp = mlp_branch_vjp(x_TC, w, settings, sums, needs_value=True)
    y_TC, norm2_vjp = layer_norm_vjp(y_TC, w.norm2_weight, w.norm2_bias, settings.eps[1], sums, 'norm2')
    if len(settings.eps) == 3:
        x_TC = x_TC + drop_path(y_TC, w, 1, strip)
        _, norm3_vjp = layer_norm_vjp(x_TC, w.norm3_weight, w.norm3_bias, settings.eps[2], sums, 'norm3')
        grad_TC = norm3_vjp(grad_TC)

    grad_TC = grad_TC + mlp_vjp(norm2_vjp(drop_path(grad_TC, w, 1, strip)))
    return grad_TC + attention_vjp(norm1_vjp(drop_path(grad_TC, w, 0, strip)))
