"""A Swin block, V1, V2 or MLP, on the tokens of some windows, as a function of its weights.

Layout: T tokens, C channels, D hidden channels of the MLP, h heads, N places of a window, B images.
"""

from typing import Any, Callable, NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .cosine import normalise_qk
from .eager import Windows
from .padded import mix_places


class BlockWeights(NamedTuple):
    """The tensors a block computes with; the weights of linear layers are (out, in)."""

    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    qkv_weight: Tensor
    qkv_bias: Optional[Tensor]
    position_bias_hNN: Tensor
    proj_weight: Tensor
    proj_bias: Optional[Tensor]
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    fc1_weight: Tensor
    fc1_bias: Optional[Tensor]
    fc2_weight: Tensor
    fc2_bias: Optional[Tensor]
    drop_path_2B: Optional[Tensor]  # stochastic depth's factor for each branch and image; None: 1
    # Of Swin V2 alone:
    cosine_scale_h: Optional[Tensor] = None  # the factor on the cosine of query and key; None: dot products
    norm3_weight: Optional[Tensor] = None
    norm3_bias: Optional[Tensor] = None


class MLPBlockWeights(NamedTuple):
    """The tensors a block of Swin-MLP computes with."""

    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    mix_weight_hNN: Tensor
    mix_bias_hN: Tensor
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    fc1_weight: Tensor
    fc1_bias: Optional[Tensor]
    fc2_weight: Tensor
    fc2_bias: Optional[Tensor]
    drop_path_2B: Optional[Tensor]


class BlockSettings(NamedTuple):
    """The settings of a block that are not weights."""

    scale: float  # of q k^T
    eps: tuple[float, ...]  # of the two norms; of three, where Swin V2 has one on the shortcut
    activation: Callable[[Tensor], Tensor]
    attn_drop: float  # of attention weights
    proj_drop: float  # behind the attention
    hidden_drop: float  # of the MLP's hidden tokens
    ffn_drop: float  # behind the MLP


def swin_block(
    x_TC: Tensor, windows: Windows, w: BlockWeights, settings: BlockSettings, gradient_only: bool = False
) -> Tensor:
    """One Swin block (Liu et al. 2021, equation 3) on the tokens of some windows: (T, C).

    Args:
        gradient_only: only the gradient is needed and not the value, so the last operations are skipped.
    """
    C, eps = (int(x_TC.shape[-1]),), settings.eps  # a number, for a tracer too
    y_TC = attention(F.layer_norm(x_TC, C, w.norm1_weight, w.norm1_bias, eps[0]), windows, w, settings)
    x_TC = x_TC + drop_path(y_TC, windows, w.drop_path_2B, 0)
    y_TC = mlp(F.layer_norm(x_TC, C, w.norm2_weight, w.norm2_bias, eps[1]), windows, w, settings, gradient_only)
    return x_TC + drop_path(y_TC, windows, w.drop_path_2B, 1)


def swin_v2_block(
    x_TC: Tensor, windows: Windows, w: BlockWeights, settings: BlockSettings, gradient_only: bool = False
) -> Tensor:
    """One Swin V2 block (Liu et al. 2022, figure 1): the norms are behind attention and MLP, and want all values."""
    C, eps = (int(x_TC.shape[-1]),), settings.eps  # a number, for a tracer too
    y_TC = F.layer_norm(attention(x_TC, windows, w, settings), C, w.norm1_weight, w.norm1_bias, eps[0])
    x_TC = x_TC + drop_path(y_TC, windows, w.drop_path_2B, 0)
    y_TC = F.layer_norm(mlp(x_TC, windows, w, settings), C, w.norm2_weight, w.norm2_bias, eps[1])
    x_TC = x_TC + drop_path(y_TC, windows, w.drop_path_2B, 1)
    return F.layer_norm(x_TC, C, w.norm3_weight, w.norm3_bias, eps[2]) if len(eps) == 3 else x_TC


def swin_mlp_block(
    x_TC: Tensor, windows: Any, w: MLPBlockWeights, settings: BlockSettings, gradient_only: bool = False
) -> Tensor:
    """One block of Swin-MLP: a linear layer over the places of each window where `swin_block` attends."""
    C, eps = (int(x_TC.shape[-1]),), settings.eps
    normed_TC = F.layer_norm(x_TC, C, w.norm1_weight, w.norm1_bias, eps[0])
    x_LNC = windows.to_windows(windows.pad(normed_TC).to(w.mix_weight_hNN.dtype))
    y_TC = windows.to_tokens(mix_places(x_LNC, w.mix_weight_hNN, w.mix_bias_hN))
    x_TC = x_TC + drop_path(y_TC, windows, w.drop_path_2B, 0)
    y_TC = mlp(F.layer_norm(x_TC, C, w.norm2_weight, w.norm2_bias, eps[1]), windows, w, settings, gradient_only)
    return x_TC + drop_path(y_TC, windows, w.drop_path_2B, 1)


def attention(x_TC: Tensor, windows: Windows, w: BlockWeights, settings: BlockSettings) -> Tensor:
    """Multi-head self-attention inside windows, W-MSA or SW-MSA, with its projections: (T, C)."""
    # Padding comes behind the norm and before qkv, so that a padded token carries the bias of qkv.
    qkv_T3C = windows.linear(windows.pad(x_TC, by_bias=True), w.qkv_weight, w.qkv_bias)
    if w.cosine_scale_h is not None:  # in Swin V2 keys have no bias, so that the one of padding stays 0
        qkv_T3C = normalise_qk(qkv_T3C, w.cosine_scale_h)
    y_TC = windows.attend(qkv_T3C, w.position_bias_hNN, settings.scale, settings.attn_drop, w.qkv_bias)
    return F.dropout(windows.linear(y_TC, w.proj_weight, w.proj_bias), settings.proj_drop)


def mlp(
    x_TC: Tensor,
    windows: Windows,
    w: Union[BlockWeights, MLPBlockWeights],
    settings: BlockSettings,
    gradient_only: bool = False,
) -> Tensor:
    """Two linear layers and the activation between them: (T, C)."""
    hidden_TD = windows.linear(x_TC, w.fc1_weight, w.fc1_bias, settings.activation)
    hidden_TD = F.dropout(hidden_TD, settings.hidden_drop)
    y_TC = windows.linear(hidden_TD, w.fc2_weight, w.fc2_bias, gradient_only=gradient_only)
    return F.dropout(y_TC, settings.ffn_drop)


def drop_path(branch_TC: Tensor, windows: Windows, factors_2B: Optional[Tensor], branch: int) -> Tensor:
    """Multiply branch 0 or 1 by the factor of its image (stochastic depth): (T, C)."""
    if factors_2B is None:
        return branch_TC
    return branch_TC * windows.per_token(factors_2B[branch]).to(branch_TC.dtype)


def draw_drop_path(rate: float, batch: int, device: torch.device) -> Tensor:
    """The factors of stochastic depth for the two branches of each image: 0, or 1 / (1 - rate). (2, B)"""
    return torch.empty(2, batch, device=device).bernoulli_(1 - rate).div_(1 - rate)
