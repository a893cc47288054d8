"""The paper's algorithms written literally, step by step: slow, plain, and the truth that fast backends are held to.

Nothing is shared with them: no index tables, no kinds of windows, no strips. `swin_block`, `swin_v2_block` and
`swin_mlp_block` take a block's state dict; `Reference` is the same as a backend.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels
of a head.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from ..windows.grid import Geometry, Size
from .graph import Graph, RolledWindows
from .protocol import BlockSettings, EmbeddingWeights, MergingWeights, Plan, Request, Windows
from .weight_cache import WeightCache

Weights = Mapping[str, Any]  # a block's tensors under mmdet's and mmpretrain's names; None where there is none
Factor = Union[Tensor, float]

EPS = (1e-5, 1e-5, 1e-5)
NAMES = {  # of `BlockWeights` and `MLPBlockWeights` in a state dict
    **{f'norm{i}_{end}': f'norm{i}.{end}' for i in (1, 2, 3) for end in ('weight', 'bias')},
    **{f'{name}_{end}': f'attn.w_msa.{name}.{end}' for name in ('qkv', 'proj') for end in ('weight', 'bias')},
    **{f'fc1_{end}': f'ffn.layers.0.0.{end}' for end in ('weight', 'bias')},
    **{f'fc2_{end}': f'ffn.layers.1.{end}' for end in ('weight', 'bias')},
}


def swin_block(
    x_BHWC: Tensor,
    weights: Weights,
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

    how: dict[str, Any] = dict(
        weights=weights, qkv_bias=weights.get('attn.w_msa.qkv.bias'), logits=products, num_heads=num_heads
    )
    cut: dict[str, Any] = dict(window_size=window_size, shift=shift, small_map=small_map, mask_padding=mask_padding)
    return _v1(x_BHWC, weights, partial(_attention, **how, **cut))


def swin_v2_block(
    x_BHWC: Tensor,
    weights: Weights,
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

    def logits(q: Tensor, k: Tensor, window_size: Size) -> Tensor:
        return _cosines(q, k, scale_h11) + _continuous_bias(weights, window_size, pretrained_window or window_size)

    how: dict[str, Any] = dict(weights=weights, qkv_bias=qkv_bias, logits=logits, num_heads=num_heads)
    cut: dict[str, Any] = dict(window_size=window_size, shift=shift, small_map=small_map, mask_padding=mask_padding)
    return _v2(x_BHWC, weights, partial(_attention, **how, **cut))


def swin_mlp_block(
    x_BHWC: Tensor, weights: Weights, num_heads: int, window_size: Size, shift: Size, small_map: str = 'pad'
) -> Tensor:
    """One block of Swin-MLP (microsoft/Swin-Transformer): a linear layer over the places of each window, one a head.

    Args:
        weights: the block's state dict.
    """
    H, W = x_BHWC.shape[1:3]
    if small_map == 'shrink' and (H <= window_size[0] or W <= window_size[1]):
        shift = (0, 0)
    mix: dict[str, Any] = dict(
        weight=weights['spatial_mlp.weight'], bias=weights['spatial_mlp.bias'], num_heads=num_heads
    )
    return _v1(x_BHWC, weights, partial(_mix_places, **mix, window_size=window_size, shift=shift))


class Reference:
    """The same for the layers of a backbone, one step after the other."""

    name = 'reference'

    def why_not(self, request: Request) -> Optional[str]:
        """See `Backend`."""
        if request.recorded is not None:
            return f'The reference is not written for {request.recorded}.'
        if request.has_dropout:
            return 'The reference has no dropout, and a dropout rate is above 0.'
        return None

    def embed(
        self, image_BCHW: Tensor, w: EmbeddingWeights, eps: Optional[float], plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        patch = tuple(w.projection_weight.shape[2:])
        rows, columns = (-(-length // side) for length, side in zip(image_BCHW.shape[2:], patch))
        padding = 0, columns * patch[1] - image_BCHW.shape[3], 0, rows * patch[0] - image_BCHW.shape[2]
        patches_BTP = F.unfold(F.pad(image_BCHW, padding), patch, stride=patch).transpose(1, 2)
        x_BTC = F.linear(patches_BTP, w.projection_weight.flatten(1), w.projection_bias)
        if eps is not None:
            x_BTC = F.layer_norm(x_BTC, x_BTC.shape[-1:], w.norm_weight, w.norm_bias, eps)
        x_BHWC: Tensor = x_BTC.unflatten(1, (rows, columns))
        return x_BHWC

    def block(
        self, x_BHWC: Tensor, w: Any, settings: BlockSettings, geometry: Geometry, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        weights, how = {NAMES.get(name, name): tensor for name, tensor in w._asdict().items()}, _How.of(settings, w)
        cut: dict[str, Any] = dict(window_size=geometry.window_size, shift=geometry.shift)
        if settings.kind == 'mlp':
            heads, N, _ = w.mix_weight_hNN.shape
            mix: dict[str, Any] = dict(
                weight=w.mix_weight_hNN.reshape(heads * N, N, 1), bias=w.mix_bias_hN.flatten(), num_heads=heads
            )
            return _v1(x_BHWC, weights, partial(_mix_places, **mix, **cut), how)

        def logits(q: Tensor, k: Tensor, window_size: Size) -> Tensor:
            bias_hNN: Tensor = w.position_bias_hNN
            if w.cosine_scale_h is not None:
                return _cosines(q, k, w.cosine_scale_h[:, None, None]) + bias_hNN
            return settings.scale * q @ k.transpose(-2, -1) + bias_hNN

        of_attention: dict[str, Any] = dict(
            weights=weights, qkv_bias=w.qkv_bias, logits=logits, num_heads=len(w.position_bias_hNN)
        )
        attention = partial(_attention, **of_attention, **cut, small_map='pad', mask_padding=geometry.mask_padding)
        return (_v1 if settings.kind == 'v1' else _v2)(x_BHWC, weights, attention, how)

    def merge(
        self, x_BHWC: Tensor, w: MergingWeights, eps: Optional[float], post_norm: bool, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""

        def normalise(x_BTC: Tensor) -> Tensor:
            return x_BTC if eps is None else F.layer_norm(x_BTC, x_BTC.shape[-1:], w.norm_weight, w.norm_bias, eps)

        H, W = x_BHWC.shape[1:3]
        padded_BCHW = F.pad(x_BHWC, (0, 0, 0, W % 2, 0, H % 2)).permute(0, 3, 1, 2)
        x_BTC = F.unfold(padded_BCHW, 2, stride=2).transpose(1, 2)
        x_BTC = F.linear(x_BTC if post_norm else normalise(x_BTC), w.reduction_weight)
        merged_BHWC: Tensor = (normalise(x_BTC) if post_norm else x_BTC).unflatten(1, (-(-H // 2), -(-W // 2)))
        return merged_BHWC

    def output_norm(
        self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float, plan: Plan
    ) -> Tensor:
        """See `Backend`."""
        return F.layer_norm(x_BHWC, x_BHWC.shape[-1:], weight, bias, eps).permute(0, 3, 1, 2).contiguous()

    def windows(self, geometry: Geometry, kind: str) -> Windows:
        """See `Backend`."""
        return Graph().windows(geometry, kind) if kind == 'mlp' else LiteralWindows(geometry)


class LiteralWindows(RolledWindows):
    """Windows in which attention is the paper's algorithm: for a block whose layers are called one by one."""

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self.mask_padding = geometry.mask_padding

    def attend(
        self, qkv_BHW3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """See `Windows`."""
        geometry = self.size, self.window_size, self.shift, self.mask_padding
        return attend_in_shifted_windows(qkv_BHW3C, bias_hNN, scale, *geometry)


class _How(NamedTuple):
    """What a backbone can set of a block."""

    eps: tuple[float, ...] = EPS
    activation: Callable[[Tensor], Tensor] = F.gelu
    factors: tuple[Factor, Factor] = (1.0, 1.0)  # of the two branches: stochastic depth, an image each

    @classmethod
    def of(cls, settings: BlockSettings, w: Any) -> '_How':
        factors: Any = (1.0, 1.0) if w.drop_path_2B is None else tuple(w.drop_path_2B[:, :, None, None, None])
        return cls(settings.eps, settings.activation, factors)


def _v1(x_BHWC: Tensor, weights: Weights, mix: Callable[[Tensor], Tensor], how: _How = _How()) -> Tensor:  # noqa: B008
    """Norms before mixing and MLP (Liu et al. 2021, equation 3)."""
    x_BHWC = x_BHWC + how.factors[0] * mix(_layer_norm(x_BHWC, weights, 'norm1', how.eps[0]))
    return x_BHWC + how.factors[1] * _mlp(_layer_norm(x_BHWC, weights, 'norm2', how.eps[1]), weights, how.activation)


def _v2(x_BHWC: Tensor, weights: Weights, mix: Callable[[Tensor], Tensor], how: _How = _How()) -> Tensor:  # noqa: B008
    """Norms behind mixing and MLP (Liu et al. 2022, figure 1)."""
    x_BHWC = x_BHWC + how.factors[0] * _layer_norm(mix(x_BHWC), weights, 'norm1', how.eps[0])
    x_BHWC = x_BHWC + how.factors[1] * _layer_norm(_mlp(x_BHWC, weights, how.activation), weights, 'norm2', how.eps[1])
    return x_BHWC if weights.get('norm3.weight') is None else _layer_norm(x_BHWC, weights, 'norm3', how.eps[2])


def _cosines(q: Tensor, k: Tensor, scale_h11: Tensor) -> Tensor:
    """Scaled cosine attention (Liu et al. 2022, equation 2)."""
    return scale_h11 * (_directions(q) @ _directions(k).transpose(-2, -1))


def _directions(x: Tensor) -> Tensor:
    """Vectors divided by their lengths. One shorter than 1e-12 has no direction: it and its derivatives are 0."""
    is_short = x.detach().norm(dim=-1, keepdim=True) <= 1e-12
    others = x.masked_fill(is_short, 1.0)
    directions: Tensor = others / others.norm(dim=-1, keepdim=True)
    return directions.masked_fill(is_short, 0.0)


def _mix_places(x_BHWC: Tensor, weight: Tensor, bias: Tensor, num_heads: int, window_size: Size, shift: Size) -> Tensor:
    """Swin-MLP's grouped convolution over the places of each window.

    A shift pads the map with window - shift zeros at top and left, and at bottom and right to whole windows.
    """
    H, W = x_BHWC.shape[1:3]
    top, left = (side - by if by else 0 for side, by in zip(window_size, shift))
    bottom, right = -(top + H) % window_size[0], -(left + W) % window_size[1]
    padded = F.pad(x_BHWC, (0, 0, left, right, top, bottom))
    mixed = []
    for x_NC in window_partition(padded, window_size):
        heads_hNd = x_NC.unflatten(1, (num_heads, -1)).transpose(0, 1)
        places_hNd = F.conv1d(heads_hNd.flatten(0, 1), weight, bias, groups=num_heads).view(heads_hNd.shape)
        mixed.append(places_hNd.transpose(0, 1).flatten(1))
    mixed_BHWC = window_reverse(torch.stack(mixed), window_size, (padded.shape[1], padded.shape[2]))
    return mixed_BHWC[:, top : top + H, left : left + W]


def _attention(
    x_BHWC: Tensor,
    weights: Weights,
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


def _mlp(x_BHWC: Tensor, weights: Weights, activation: Callable[[Tensor], Tensor]) -> Tensor:
    hidden = activation(F.linear(x_BHWC, weights['ffn.layers.0.0.weight'], weights['ffn.layers.0.0.bias']))
    return F.linear(hidden, weights['ffn.layers.1.weight'], weights['ffn.layers.1.bias'])


def _layer_norm(x_BHWC: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    return F.layer_norm(x_BHWC, x_BHWC.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'], eps)


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
    weights_LhNN = logits(q, k).masked_fill(apart_LNN[:, None], -torch.inf).softmax(-1)
    x_LNC = (weights_LhNN.to(v.dtype) @ v).transpose(1, 2).reshape(L, N, -1)
    x_BHWC = window_reverse(x_LNC, window_size, padded)
    return x_BHWC.roll(shift, dims=(1, 2))[:, : size[0], : size[1]]


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


def _continuous_bias(weights: Weights, window_size: Size, pretrained_window: Size) -> Tensor:
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
