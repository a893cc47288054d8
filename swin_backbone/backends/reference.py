"""The paper's algorithm written literally, step by step: slow, plain, and the truth that fast paths are held to.

No function here is used outside tests, but for the trial of the Triton kernels on a device. Nothing is shared with the
fast path: no index tables, no kinds of windows, no strips.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels
of a head.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


def swin_block(
    x_BHWC: Tensor,
    weights: Mapping[str, Tensor],
    num_heads: int,
    window_size: Size,
    shift: Size,
    scale: float,
    small_map: str = 'pad',
    mask_padding: bool = False,
) -> Tensor:
    """One Swin block (Liu et al. 2021, equation 3) with exact GELU, no dropout and LayerNorms of eps 1e-5.

    Args:
        weights: the block's state dict, under mmdet's names.
    """
    table, table_window = weights['attn.w_msa.relative_position_bias_table'], window_size

    def products(q: Tensor, k: Tensor, window_size: Size) -> Tensor:
        return scale * q @ k.transpose(-2, -1) + _bias_from_table(table, window_size, table_window)

    cut = num_heads, window_size, shift, small_map, mask_padding
    normed = _layer_norm(x_BHWC, weights, 'norm1')
    x_BHWC = x_BHWC + _attention(normed, weights, weights.get('attn.w_msa.qkv.bias'), products, *cut)
    return x_BHWC + _mlp(_layer_norm(x_BHWC, weights, 'norm2'), weights)


def swin_v2_block(
    x_BHWC: Tensor,
    weights: Mapping[str, Tensor],
    num_heads: int,
    window_size: Size,
    shift: Size,
    pretrained_window: Optional[Size] = None,
    small_map: str = 'pad',
    mask_padding: bool = False,
) -> Tensor:
    """One Swin V2 block (Liu et al. 2022, figure 1), with `norm3` on the shortcut if there are weights for it.

    Args:
        weights: the block's state dict, under mmpretrain's names.
        pretrained_window: the window whose largest offset is 8 on the linear scale of coordinates; None: the window.
    """
    q_bias, v_bias = weights.get('attn.w_msa.q_bias'), weights.get('attn.w_msa.v_bias')
    qkv_bias = None if q_bias is None or v_bias is None else torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
    scale_h11 = weights['attn.w_msa.logit_scale'].clamp(max=math.log(100)).exp()

    def cosines(q: Tensor, k: Tensor, window_size: Size) -> Tensor:
        """Equations 2 to 4."""
        cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return scale_h11 * cosines + _continuous_bias(weights, window_size, pretrained_window or window_size)

    cut = num_heads, window_size, shift, small_map, mask_padding
    x_BHWC = x_BHWC + _layer_norm(_attention(x_BHWC, weights, qkv_bias, cosines, *cut), weights, 'norm1')
    x_BHWC = x_BHWC + _layer_norm(_mlp(x_BHWC, weights), weights, 'norm2')
    return _layer_norm(x_BHWC, weights, 'norm3') if 'norm3.weight' in weights else x_BHWC


def _attention(
    x_BHWC: Tensor,
    weights: Mapping[str, Tensor],
    qkv_bias: Optional[Tensor],
    logits: Callable[..., Tensor],
    num_heads: int,
    window_size: Size,
    shift: Size,
    small_map: str,
    mask_padding: bool,
) -> Tensor:
    """Pad, project to q, k and v, attend inside shifted windows, project.

    Args:
        logits: of q and k (L, h, N, d), and `window_size`, that of the window they are of: (L, h, N, N).
    """
    _B, H, W, _C = x_BHWC.shape
    if small_map == 'shrink' and (H <= window_size[0] or W <= window_size[1]):
        window_size = (min(H, W, window_size[0]), min(H, W, window_size[1]))
        shift = (0, 0)
    padded_height, padded_width = (-(-length // side) * side for length, side in zip((H, W), window_size))
    x_BHWC = F.pad(x_BHWC, (0, 0, 0, padded_width - W, 0, padded_height - H))
    qkv_BHW3C = F.linear(x_BHWC, weights['attn.w_msa.qkv.weight'], qkv_bias)
    logits_of_window = partial(logits, window_size=window_size)
    x_BHWC = _attend(qkv_BHW3C, num_heads, logits_of_window, (H, W), window_size, shift, mask_padding)
    return F.linear(x_BHWC, weights['attn.w_msa.proj.weight'], weights['attn.w_msa.proj.bias'])


def _mlp(x_BHWC: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    hidden = F.gelu(F.linear(x_BHWC, weights['ffn.layers.0.0.weight'], weights['ffn.layers.0.0.bias']))
    return F.linear(hidden, weights['ffn.layers.1.weight'], weights['ffn.layers.1.bias'])


def _layer_norm(x_BHWC: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    return F.layer_norm(x_BHWC, x_BHWC.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'])


def attend_in_shifted_windows(
    qkv_BHW3C: Tensor,
    bias_hNN: Tensor,
    scale: float,
    size: Size,
    window_size: Size,
    shift: Size,
    mask_padding: bool = False,
) -> Tensor:
    """Softmax(scale q k^T + bias) v in each window of maps that are padded to whole windows already: (B, H, W, C).

    Args:
        size: (H, W), without padding.
    """

    def products(q: Tensor, k: Tensor) -> Tensor:
        return scale * q @ k.transpose(-2, -1) + bias_hNN

    return _attend(qkv_BHW3C, len(bias_hNN), products, size, window_size, shift, mask_padding)


def _attend(
    qkv_BHW3C: Tensor,
    num_heads: int,
    logits: Callable[[Tensor, Tensor], Tensor],
    size: Size,
    window_size: Size,
    shift: Size,
    mask_padding: bool,
) -> Tensor:
    """Roll, partition, attend under the mask of regions, reverse, roll back, crop."""
    B, padded_height, padded_width, _ = qkv_BHW3C.shape
    qkv_LN3C = window_partition(qkv_BHW3C.roll((-shift[0], -shift[1]), dims=(1, 2)), window_size)
    L, N, _ = qkv_LN3C.shape
    q, k, v = qkv_LN3C.view(L, N, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    padded = padded_height, padded_width
    regions_HW = _regions(size, padded, window_size, shift, mask_padding).to(qkv_BHW3C.device)
    regions_LN = window_partition(regions_HW[None, :, :, None].expand(B, -1, -1, -1), window_size)[..., 0]
    apart_LNN = regions_LN[:, :, None] != regions_LN[:, None, :]
    weights_LhNN = _masked_softmax(logits(q, k), apart_LNN)
    x_LNC = (weights_LhNN.to(v.dtype) @ v).transpose(1, 2).reshape(L, N, -1)
    x_BHWC = window_reverse(x_LNC, window_size, padded)
    return x_BHWC.roll(shift, dims=(1, 2))[:, : size[0], : size[1]]


def _masked_softmax(logits_LhNN: Tensor, apart_LNN: Tensor) -> Tensor:
    return logits_LhNN.masked_fill(apart_LNN[:, None], -torch.inf).softmax(-1)


def window_partition(x_BHWC: Tensor, window_size: Size) -> Tensor:
    """Cut maps into windows, row by row: (L, N, C)."""
    B, H, W, C = x_BHWC.shape
    Wh, Ww = window_size
    x = x_BHWC.view(B, H // Wh, Wh, W // Ww, Ww, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, Wh * Ww, C)


def window_reverse(x_LNC: Tensor, window_size: Size, map_size: Size) -> Tensor:
    """Put windows back together: (B, H, W, C)."""
    (Wh, Ww), (H, W) = window_size, map_size
    x = x_LNC.view(-1, H // Wh, W // Ww, Wh, Ww, x_LNC.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, x_LNC.shape[-1])


def _regions(size: Size, padded: Size, window_size: Size, shift: Size, mask_padding: bool) -> Tensor:
    """The number of the region each token of the rolled map is in; tokens attend within theirs (figure 4)."""
    regions_HW = torch.zeros(padded, dtype=torch.long)
    number = 0
    for rows in _slices(padded[0], window_size[0], shift[0]):
        for columns in _slices(padded[1], window_size[1], shift[1]):
            regions_HW[rows, columns] = number
            number += 1
    if mask_padding:
        is_padding = torch.ones(padded, dtype=torch.bool)
        is_padding[: size[0], : size[1]] = False
        regions_HW[is_padding.roll((-shift[0], -shift[1]), dims=(0, 1))] = -1
    return regions_HW


def _slices(length: int, window: int, shift: int) -> tuple[slice, ...]:
    if not shift:
        return (slice(None),)
    return slice(0, length - window), slice(length - window, length - shift), slice(length - shift, length)


def _continuous_bias(weights: Mapping[str, Tensor], window_size: Size, pretrained_window: Size) -> Tensor:
    """16 sigmoid(MLP(log-spaced offset)) of each pair of places, one pair at a time: (h, N, N)."""
    places = [(y, x) for y in range(window_size[0]) for x in range(window_size[1])]
    rows = [[_log_spaced(a - b, w) for a, b, w in zip(q, k, pretrained_window)] for q in places for k in places]
    first, bias, last = (weights[f'attn.w_msa.cpb_mlp.{name}'] for name in ('0.weight', '0.bias', '2.weight'))
    hidden = F.relu(F.linear(torch.tensor(rows, dtype=first.dtype, device=first.device), first, bias))
    return 16 * F.linear(hidden, last).sigmoid().view(len(places), len(places), -1).permute(2, 0, 1)


def _log_spaced(offset: int, window: int) -> float:
    """The sign of an offset times log2(1 + |offset|) / 3, with the largest of the window at 8 (or, of 1, none)."""
    return math.copysign(math.log2(1 + abs(8 * offset / max(1, window - 1))) / math.log2(8), offset)


def _bias_from_table(table: Tensor, window_size: Size, table_window: Size) -> Tensor:
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
