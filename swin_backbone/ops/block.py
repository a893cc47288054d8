"""A Swin block on the tokens of some windows, as a function of its weights, and its gradient.

Backward is driven by hand: a `..._vjp` gives what its namesake gives, and the function that takes the gradient of
that to the gradient of the input. On the way the gradients of the weights are added to `GradientSums`.

Layout: T tokens, C channels, D hidden channels of the MLP, h heads, N places of a window, B images.
"""

from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import attend_in_windows, attend_in_windows_vjp
from .cosine import normalise_qk, normalise_qk_vjp
from .dropout import draw_keep
from .linear import linear, linear_backward
from .norm import layer_norm_vjp
from .sums import GradientSums
from .windows import Strip

Vjp = Callable[[Tensor], Tensor]


class BlockWeights(NamedTuple):
    """The tensors a block computes with; the weights of linear layers are (out, in)."""

    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    qkv_weight: Tensor
    qkv_bias: Optional[Tensor]
    position_bias_hNN: Tensor
    proj_weight: Tensor
    proj_bias: Tensor
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    fc1_weight: Tensor
    fc1_bias: Tensor
    fc2_weight: Tensor
    fc2_bias: Tensor
    drop_path_2B: Optional[Tensor]  # by what the two branches of each image are multiplied; None: by 1
    # Of Swin V2 alone:
    cosine_scale_h: Optional[Tensor] = None  # by what the cosine of query and key is multiplied; None: no cosine
    norm3_weight: Optional[Tensor] = None
    norm3_bias: Optional[Tensor] = None


class BlockSettings(NamedTuple):
    """What else a block is, besides its weights."""

    num_heads: int
    scale: float  # of q k^T
    eps: tuple[float, ...]  # of the two norms; of three, where Swin V2 has one on the shortcut
    activation: Callable[[Tensor], Tensor]
    attn_drop: float  # of attention weights
    proj_drop: float  # behind the attention
    hidden_drop: float  # of the MLP's hidden tokens
    ffn_drop: float  # behind the MLP
    attention_backend: str = 'auto'

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return any((self.attn_drop, self.proj_drop, self.hidden_drop, self.ffn_drop))


def swin_block(x_TC: Tensor, strip: Strip, w: BlockWeights, settings: BlockSettings) -> Tensor:
    """One Swin block (Liu et al. 2021, equation 3) on the tokens of a strip: (T, C)."""
    C = x_TC.shape[-1:]
    y_TC = attention_branch(F.layer_norm(x_TC, C, w.norm1_weight, w.norm1_bias, settings.eps[0]), strip, w, settings)
    x_TC = x_TC + drop_path(y_TC, w, 0, strip)
    y_TC = mlp_branch(F.layer_norm(x_TC, C, w.norm2_weight, w.norm2_bias, settings.eps[1]), w, settings)
    return x_TC + drop_path(y_TC, w, 1, strip)


def swin_block_backward(
    grad_TC: Tensor, x_TC: Tensor, strip: Strip, w: BlockWeights, sums: GradientSums, settings: BlockSettings
) -> Tensor:
    """The gradient of `swin_block`'s input, from that of its output, computing again what lies between."""
    normed_TC, norm1_vjp = layer_norm_vjp(x_TC, w.norm1_weight, w.norm1_bias, settings.eps[0], sums, 'norm1')
    y_TC, attention_vjp = attention_branch_vjp(normed_TC, strip, w, settings, sums)
    x_TC = x_TC + drop_path(y_TC, w, 0, strip)
    normed_TC, norm2_vjp = layer_norm_vjp(x_TC, w.norm2_weight, w.norm2_bias, settings.eps[1], sums, 'norm2')
    _, mlp_vjp = mlp_branch_vjp(normed_TC, w, settings, sums, needs_value=False)

    grad_TC = grad_TC + norm2_vjp(mlp_vjp(drop_path(grad_TC, w, 1, strip)))
    return grad_TC + norm1_vjp(attention_vjp(drop_path(grad_TC, w, 0, strip)))


def attention_branch(x_TC: Tensor, strip: Strip, w: BlockWeights, settings: BlockSettings) -> Tensor:
    """Window attention with its projections: (T, C)."""
    # Padding comes behind the norm and before qkv, so that a padded token carries the bias of qkv.
    qkv_T3C = linear(strip.with_padding_token(x_TC), w.qkv_weight, w.qkv_bias)
    if w.cosine_scale_h is not None:
        qkv_T3C = normalise_qk(qkv_T3C, w.cosine_scale_h)
    y_TC = attend_in_windows(
        qkv_T3C,
        strip,
        w.position_bias_hNN,
        settings.num_heads,
        settings.scale,
        settings.attn_drop,
        settings.attention_backend,
    )
    return dropout_vjp(linear(y_TC, w.proj_weight, w.proj_bias), settings.proj_drop)[0]


def attention_branch_vjp(
    x_TC: Tensor, strip: Strip, w: BlockWeights, settings: BlockSettings, sums: GradientSums
) -> tuple[Tensor, Vjp]:
    x_TC = strip.with_padding_token(x_TC)
    qkv_T3C, cosine_vjp = linear(x_TC, w.qkv_weight, w.qkv_bias), None
    if w.cosine_scale_h is not None:
        qkv_T3C, cosine_vjp = normalise_qk_vjp(qkv_T3C, w.cosine_scale_h, sums)
    attended_TC, attend_vjp = attend_in_windows_vjp(
        qkv_T3C,
        strip,
        w.position_bias_hNN,
        settings.num_heads,
        settings.scale,
        settings.attn_drop,
        sums,
        settings.attention_backend,
    )
    y_TC, drop_vjp = dropout_vjp(linear(attended_TC, w.proj_weight, w.proj_bias), settings.proj_drop)

    def vjp(grad_TC: Tensor) -> Tensor:
        grad_TC = linear_backward(drop_vjp(grad_TC), attended_TC, w.proj_weight, sums, 'proj')
        grad_T3C = attend_vjp(grad_TC)
        if cosine_vjp is not None:
            grad_T3C = cosine_vjp(grad_T3C)
        grad_TC = linear_backward(grad_T3C, x_TC, w.qkv_weight, sums, 'qkv')
        return grad_TC[:-1] if strip.padded else grad_TC

    return y_TC, vjp


def mlp_branch(x_TC: Tensor, w: BlockWeights, settings: BlockSettings) -> Tensor:
    """The MLP: (T, C)."""
    hidden_TD = linear(x_TC, w.fc1_weight, w.fc1_bias, settings.activation)
    hidden_TD, _ = dropout_vjp(hidden_TD, settings.hidden_drop)
    return dropout_vjp(linear(hidden_TD, w.fc2_weight, w.fc2_bias), settings.ffn_drop)[0]


def mlp_branch_vjp(
    x_TC: Tensor, w: BlockWeights, settings: BlockSettings, sums: GradientSums, needs_value: bool
) -> tuple[Optional[Tensor], Vjp]:
    """`mlp_branch` and its gradient, which does not take the value: without `needs_value` there is none."""
    inner_TD = linear(x_TC, w.fc1_weight, w.fc1_bias)
    with torch.enable_grad():
        inner_TD.requires_grad_()
        active_TD = settings.activation(inner_TD)
    hidden_TD, hidden_drop_vjp = dropout_vjp(active_TD.detach(), settings.hidden_drop)
    y_TC = linear(hidden_TD, w.fc2_weight, w.fc2_bias) if needs_value else x_TC
    y_TC, drop_vjp = dropout_vjp(y_TC, settings.ffn_drop)

    def vjp(grad_TC: Tensor) -> Tensor:
        grad_TD = linear_backward(drop_vjp(grad_TC), hidden_TD, w.fc2_weight, sums, 'fc2')
        (grad_TD,) = torch.autograd.grad(active_TD, inner_TD, hidden_drop_vjp(grad_TD))
        return linear_backward(grad_TD, x_TC, w.fc1_weight, sums, 'fc1')

    return y_TC if needs_value else None, vjp


def dropout_vjp(x: Tensor, rate: float) -> tuple[Tensor, Vjp]:
    if not rate:
        return x, lambda grad: grad
    keep = draw_keep(torch.empty_like(x), rate)
    return x * keep, lambda grad: grad * keep


def draw_drop_path(rate: float, batch: int, device: torch.device) -> Tensor:
    """What stochastic depth multiplies the two branches of each image by: 0, or 1 / (1 - rate). (2, B)"""
    return draw_keep(torch.empty(2, batch, device=device), rate)


def drop_path(branch_TC: Tensor, w: BlockWeights, branch: int, strip: Strip) -> Tensor:
    """A branch, 0 or 1, times what stochastic depth multiplies it by: (T, C)."""
    if w.drop_path_2B is None:
        return branch_TC
    return branch_TC * strip.per_token(w.drop_path_2B[branch]).to(branch_TC.dtype)
