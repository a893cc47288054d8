"""A Swin block, V1, V2 or MLP, on the tokens of some windows, as a function of its weights.

Layout: T tokens, C channels in, D channels out or hidden channels of the MLP, L windows, N places of a window, h heads,
d channels of a head, B images.
"""

from collections.abc import Callable
from typing import Any, Optional, TypeVar, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from ..protocol import BlockSettings, BlockWeights, MLPBlockWeights, Windows
from .cosine import normalise_qk

Weights = TypeVar('Weights', bound=tuple[Optional[Tensor], ...])

# What automatic mixed precision casts.
LINEAR = {
    *('qkv_weight', 'qkv_bias', 'proj_weight', 'proj_bias', 'fc1_weight', 'fc1_bias', 'fc2_weight', 'fc2_bias'),
    *('mix_weight_hNN', 'mix_bias_hN', 'projection_weight', 'projection_bias', 'reduction_weight'),
}


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


BLOCKS: dict[str, Callable[..., Tensor]] = dict(v1=swin_block, v2=swin_v2_block, mlp=swin_mlp_block)


def in_dtype(w: Weights, dtype: Optional[torch.dtype]) -> Weights:
    """A layer's weights with those of its linear layers in `dtype`: cast once, not for every strip."""
    if dtype is None:
        return w
    fields: Any = w
    cast = [t.to(dtype) if name in LINEAR and t is not None else t for name, t in zip(fields._fields, w)]
    made: Weights = type(fields)(*cast)
    return made


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


def mix_places(x_LNC: Tensor, weight_hNN: Tensor, bias_hN: Tensor) -> Tensor:
    """Apply a linear layer over the places of each window, one for each head and its channels: (L, N, C)."""
    (L, N, C), h = x_LNC.shape, len(weight_hNN)
    x_hNLd = contiguous_copy(x_LNC.view(L, N, h, C // h).permute(2, 1, 0, 3)).view(h, N, L * (C // h))
    y_hNLd = torch.baddbmm(bias_hN[..., None], weight_hNN, x_hNLd)
    return contiguous_copy(y_hNLd.view(h, N, L, C // h).permute(2, 1, 0, 3)).view(L, N, C)


def contiguous_copy(x: Tensor) -> Tensor:
    """`x` copied into contiguous memory; `contiguous()` asks first, which is a guard on sizes."""
    return x.clone(memory_format=torch.contiguous_format)


def draw_drop_path(rate: float, batch: int, device: torch.device) -> Tensor:
    """The factors of stochastic depth for the two branches of each image: 0, or 1 / (1 - rate). (2, B)

    On a CPU they are those that mmcv's DropPath draws from the same seed, first for attention, then for the MLP: so a
    training with a toolbox's own Swin drops the same branches.
    """
    return torch.rand(2, batch, device=device).add_(1 - rate).floor_().div_(1 - rate)
