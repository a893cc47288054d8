"""The paper's algorithms written literally, step by step: slow, plain, and the truth that fast backends are held to.

Nothing is shared with them: no index tables, no kinds of windows, no strips.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels
of a head.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..windows.grid import Geometry, Size
from .graph import Graph, RolledWindows
from .protocol import BlockSettings, EmbeddingWeights, MergingWeights, Plan, Request, Windows
from .weight_cache import WeightCache


class Reference:
    """The layers of a backbone, one step after the other."""

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
        mix = partial(_mix_places if settings.kind == 'mlp' else _attention, w=w, settings=settings, geometry=geometry)
        mlp = partial(_mlp, w=w, activation=settings.activation)
        vectors = (w.norm1_weight, w.norm1_bias), (w.norm2_weight, w.norm2_bias)
        norm1, norm2 = (partial(_layer_norm, vectors=v, eps=eps) for v, eps in zip(vectors, settings.eps))
        # Stochastic depth, an image each
        factors = (1.0, 1.0) if w.drop_path_2B is None else w.drop_path_2B[:, :, None, None, None]
        if settings.kind != 'v2':  # norms before mixing and MLP (Liu et al. 2021, equation 3)
            x_BHWC = x_BHWC + factors[0] * mix(norm1(x_BHWC))
            return x_BHWC + factors[1] * mlp(norm2(x_BHWC))
        # Behind them (Liu et al. 2022, figure 1)
        x_BHWC = x_BHWC + factors[0] * norm1(mix(x_BHWC))
        x_BHWC = x_BHWC + factors[1] * norm2(mlp(x_BHWC))
        has_norm3 = len(settings.eps) == 3
        return _layer_norm(x_BHWC, (w.norm3_weight, w.norm3_bias), settings.eps[2]) if has_norm3 else x_BHWC

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


def _cosines(q: Tensor, k: Tensor, scale_h11: Tensor) -> Tensor:
    """Scaled cosine attention (Liu et al. 2022, equation 2)."""
    return scale_h11 * (_directions(q) @ _directions(k).transpose(-2, -1))


def _directions(x: Tensor) -> Tensor:
    """Vectors divided by their lengths. One shorter than 1e-12 has no direction: it and its derivatives are 0."""
    is_short = x.detach().norm(dim=-1, keepdim=True) <= 1e-12
    others = x.masked_fill(is_short, 1.0)
    directions: Tensor = others / others.norm(dim=-1, keepdim=True)
    return directions.masked_fill(is_short, 0.0)


def _mix_places(x_BHWC: Tensor, w: Any, settings: BlockSettings, geometry: Geometry) -> Tensor:
    """Swin-MLP's grouped convolution over the places of each window.

    A shift pads the map with window - shift zeros at top and left, and at bottom and right to whole windows.
    """
    (H, W), window_size, (num_heads, N, _) = x_BHWC.shape[1:3], geometry.window_size, w.mix_weight_hNN.shape
    weight, bias = w.mix_weight_hNN.reshape(num_heads * N, N, 1), w.mix_bias_hN.flatten()
    top, left = (side - by if by else 0 for side, by in zip(window_size, geometry.shift))
    bottom, right = -(top + H) % window_size[0], -(left + W) % window_size[1]
    padded = F.pad(x_BHWC, (0, 0, left, right, top, bottom))
    mixed = []
    for x_NC in window_partition(padded, window_size):
        heads_hNd = x_NC.unflatten(1, (num_heads, -1)).transpose(0, 1)
        places_hNd = F.conv1d(heads_hNd.flatten(0, 1), weight, bias, groups=num_heads).view(heads_hNd.shape)
        mixed.append(places_hNd.transpose(0, 1).flatten(1))
    mixed_BHWC = window_reverse(torch.stack(mixed), window_size, (padded.shape[1], padded.shape[2]))
    return mixed_BHWC[:, top : top + H, left : left + W]


def _attention(x_BHWC: Tensor, w: Any, settings: BlockSettings, geometry: Geometry) -> Tensor:
    """Pad, project to q, k and v, attend inside shifted windows, project."""

    def logits(q: Tensor, k: Tensor) -> Tensor:
        bias_hNN: Tensor = w.position_bias_hNN
        if w.cosine_scale_h is not None:
            return _cosines(q, k, w.cosine_scale_h[:, None, None]) + bias_hNN
        return settings.scale * q @ k.transpose(-2, -1) + bias_hNN

    _, H, W, window_size, shift, mask_padding, _ = geometry
    padded_height, padded_width = (-(-length // side) * side for length, side in zip((H, W), window_size))
    x_BHWC = F.pad(x_BHWC, (0, 0, 0, padded_width - W, 0, padded_height - H))
    qkv_BHW3C = F.linear(x_BHWC, w.qkv_weight, w.qkv_bias)
    x_BHWC = _attend(qkv_BHW3C, len(w.position_bias_hNN), logits, (H, W), window_size, shift, mask_padding)
    return F.linear(x_BHWC, w.proj_weight, w.proj_bias)


def _mlp(x_BHWC: Tensor, w: Any, activation: Callable[[Tensor], Tensor]) -> Tensor:
    return F.linear(activation(F.linear(x_BHWC, w.fc1_weight, w.fc1_bias)), w.fc2_weight, w.fc2_bias)


def _layer_norm(x_BHWC: Tensor, vectors: tuple[Optional[Tensor], Optional[Tensor]], eps: float) -> Tensor:
    return F.layer_norm(x_BHWC, x_BHWC.shape[-1:], *vectors, eps)


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
