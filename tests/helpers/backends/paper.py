"""Blocks from their state dicts, by the paper's algorithms: the position bias of each pair of places by itself.

Layout: B batch, H W height and width of a map, C channels, T tokens, N places of a window, h heads.
"""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from swin_backbone.backends.protocol import BlockSettings, BlockWeights, MLPBlockWeights, Plan
from swin_backbone.backends.reference import Reference
from swin_backbone.backends.weight_cache import WeightCache
from swin_backbone.windows.grid import Geometry, Size

REFERENCE = Reference()
# Of what `BlockWeights` and `MLPBlockWeights` share, in mmdet's and mmpretrain's names; None where there is none.
NAMES = {
    **{f'norm{i}_{end}': f'norm{i}.{end}' for i in (1, 2) for end in ('weight', 'bias')},
    **{f'fc1_{end}': f'ffn.layers.0.0.{end}' for end in ('weight', 'bias')},
    **{f'fc2_{end}': f'ffn.layers.1.{end}' for end in ('weight', 'bias')},
}
PROJECTIONS = {f'{name}_{end}': f'attn.w_msa.{name}.{end}' for name in ('qkv', 'proj') for end in ('weight', 'bias')}


def swin_block(
    x_BHWC: Tensor,
    weights: dict,
    num_heads: int,
    window_size: Size,
    shift: Size,
    scale: float,
    small_map: str = 'pad',
    mask_padding: bool = False,
) -> Tensor:
    """One Swin block (Liu et al. 2021, equation 3) with exact GELU, no dropout and LayerNorms of eps 1e-5."""
    fitted, shift = _fit(x_BHWC, window_size, shift, small_map)
    bias_hNN = bias_from_table(weights['attn.w_msa.relative_position_bias_table'], fitted, window_size)
    named = {name: weights.get(theirs) for name, theirs in {**NAMES, **PROJECTIONS}.items()}
    w = BlockWeights(**named, position_bias_hNN=bias_hNN, drop_path_2B=None)
    return _block('v1', x_BHWC, w, fitted, shift, mask_padding, scale)


def swin_v2_block(
    x_BHWC: Tensor,
    weights: dict,
    num_heads: int,
    window_size: Size,
    shift: Size,
    pretrained_window: Optional[Size] = None,
    small_map: str = 'pad',
    mask_padding: bool = False,
) -> Tensor:
    """One Swin V2 block (Liu et al. 2022, figure 1), with `norm3` on the shortcut if there are weights for it.

    Args:
        pretrained_window: the window whose largest offset is 8 on the linear scale of coordinates; None: the window.
    """
    fitted, shift = _fit(x_BHWC, window_size, shift, small_map)
    q_bias, v_bias = weights.get('attn.w_msa.q_bias'), weights.get('attn.w_msa.v_bias')
    named = {name: weights.get(theirs) for name, theirs in {**NAMES, **PROJECTIONS}.items()}
    named['qkv_bias'] = None if q_bias is None else torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
    w = BlockWeights(
        **named,
        position_bias_hNN=continuous_bias(weights, fitted, pretrained_window or fitted),
        drop_path_2B=None,
        cosine_scale_h=weights['attn.w_msa.logit_scale'].flatten().clamp(max=math.log(100)).exp(),
        norm3_weight=weights.get('norm3.weight'),
        norm3_bias=weights.get('norm3.bias'),
    )
    return _block('v2', x_BHWC, w, fitted, shift, mask_padding)


def swin_mlp_block(
    x_BHWC: Tensor, weights: dict, num_heads: int, window_size: Size, shift: Size, small_map: str = 'pad'
) -> Tensor:
    """One block of Swin-MLP (microsoft/Swin-Transformer): a linear layer over the places of each window, one a head."""
    N, (_, shift) = window_size[0] * window_size[1], _fit(x_BHWC, window_size, shift, small_map)
    w = MLPBlockWeights(
        **{name: weights.get(theirs) for name, theirs in NAMES.items()},
        mix_weight_hNN=weights['spatial_mlp.weight'].view(num_heads, N, N),
        mix_bias_hN=weights['spatial_mlp.bias'].view(num_heads, N),
        drop_path_2B=None,
    )
    return _block('mlp', x_BHWC, w, window_size, shift, False)


def _fit(x_BHWC: Tensor, window_size: Size, shift: Size, small_map: str) -> tuple[Size, Size]:
    H, W = x_BHWC.shape[1:3]
    if small_map == 'shrink' and (H <= window_size[0] or W <= window_size[1]):
        return (min(H, W, window_size[0]), min(H, W, window_size[1])), (0, 0)
    return window_size, shift


def _block(kind: str, x_BHWC: Tensor, w, window: Size, shift: Size, mask_padding: bool, scale: float = 1.0) -> Tensor:
    eps = (1e-5,) * (3 if getattr(w, 'norm3_weight', None) is not None else 2)
    settings = BlockSettings(kind, x_BHWC.dtype, scale, eps, F.gelu, 0.0, 0.0, 0.0, 0.0)
    geometry = Geometry(*x_BHWC.shape[:3], window, shift, mask_padding, x_BHWC.device)
    return REFERENCE.block(x_BHWC, w, settings, geometry, Plan(REFERENCE), WeightCache())


def continuous_bias(weights: dict, window_size: Size, pretrained_window: Size) -> Tensor:
    """16 sigmoid(MLP(log-spaced offset)) of each pair of places, one pair at a time: (h, N, N)."""
    places = [(y, x) for y in range(window_size[0]) for x in range(window_size[1])]
    rows = [[_log_spaced(a - b, w) for a, b, w in zip(q, k, pretrained_window)] for q in places for k in places]
    first, bias, last = (weights[f'attn.w_msa.cpb_mlp.{name}'] for name in ('0.weight', '0.bias', '2.weight'))
    hidden = F.relu(F.linear(torch.tensor(rows, dtype=first.dtype, device=first.device), first, bias))
    return 16 * F.linear(hidden, last).sigmoid().view(len(places), len(places), -1).permute(2, 0, 1)


def _log_spaced(offset: int, window: int) -> float:
    """The sign of an offset times log2(1 + |offset|) / 3, with the largest of the window at 8 (or, of 1, none)."""
    return math.copysign(math.log2(1 + abs(8 * offset / max(1, window - 1))) / math.log2(8), offset)


def bias_from_table(table: Tensor, window_size: Size, table_window: Size) -> Tensor:
    """The bias of each pair of places, by its offset, one pair at a time: (h, N, N)."""
    places = [(y, x) for y in range(window_size[0]) for x in range(window_size[1])]
    rows = [
        (qy - ky + table_window[0] - 1) * (2 * table_window[1] - 1) + qx - kx + table_window[1] - 1
        for qy, qx in places
        for ky, kx in places
    ]
    return table[torch.tensor(rows, device=table.device)].view(len(places), len(places), -1).permute(2, 0, 1)


def add_norm(
    x_TC: Tensor,
    branch_TC: Optional[Tensor],
    factors_B: Optional[Tensor],
    weight_C: Optional[Tensor],
    bias_C: Optional[Tensor],
    eps: float,
) -> tuple[Tensor, Tensor]:
    """A residual sum with stochastic depth's factor of each image, and the LayerNorm of it, where there is one."""
    if branch_TC is not None:
        factor_T1 = 1 if factors_B is None else factors_B.repeat_interleave(len(x_TC) // len(factors_B))[:, None]
        x_TC = x_TC + factor_T1 * branch_TC
    if weight_C is None or bias_C is None:
        return x_TC, x_TC
    mean, variance = x_TC.mean(-1, keepdim=True), x_TC.var(-1, unbiased=False, keepdim=True)
    return x_TC, (x_TC - mean) / (variance + eps).sqrt() * weight_C + bias_C
