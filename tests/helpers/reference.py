"""The paper's algorithms, written literally on state dicts. All comparisons use the algorithms for the truth.

The file shares no code with the package. The position bias is read pair by pair.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels of a
head.
"""

import math
from collections.abc import Callable
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]
Weights = dict[str, Tensor]


# --- A backbone -------------------------------------------------------------------------------------------------------


def maps(model: nn.Module, x_BCHW: Tensor, drop_paths: Optional[list[Tensor]] = None) -> list[Tensor]:
    """Return the maps of a backbone of the package, from parameters and settings.

    Args:
        drop_paths: factors (2, B) of the branches of all blocks. None: 1.
    """
    factors = iter(drop_paths or [])
    x_BHWC = patch_embedding(model.patch_embed, x_BCHW)
    if model.absolute_pos_embed is not None:
        x_BHWC = x_BHWC + absolute_position(model, x_BHWC.shape[1:3])
    outputs = []
    for index, stage in enumerate(model.stages):
        for module in stage.blocks:
            x_BHWC = block(module, x_BHWC, next(factors, None))
        if index in model.out_indices:
            outputs.append(layer_norm(x_BHWC, getattr(model, f'norm{index}')).permute(0, 3, 1, 2))
        if index + 1 < len(model.stages):
            x_BHWC = patch_merging((model.stages[index + 1] if model.merging_first else stage).downsample, x_BHWC)
    return outputs


def patch_embedding(module: nn.Module, image_BCHW: Tensor) -> Tensor:
    """Project each patch of an image, padded with zeros at right and bottom, to a token."""
    patch, weight = module.patch_size, module.projection.weight
    rows, columns = (-(-length // side) for length, side in zip(image_BCHW.shape[2:], patch))
    padding = 0, columns * patch[1] - image_BCHW.shape[3], 0, rows * patch[0] - image_BCHW.shape[2]
    patches_BTP = F.unfold(F.pad(image_BCHW, padding), patch, stride=patch).transpose(1, 2)
    x_BTC = F.linear(patches_BTP, weight.flatten(1), module.projection.bias)
    return layer_norm(x_BTC, module.norm).unflatten(1, (rows, columns))


def patch_merging(module: nn.Module, x_BHWC: Tensor) -> Tensor:
    """Concatenate 2 x 2 neighbours like `nn.Unfold`, normalise and project. With `post_norm`, project first."""
    H, W = x_BHWC.shape[1:3]
    padded_BCHW = F.pad(x_BHWC, (0, 0, 0, W % 2, 0, H % 2)).permute(0, 3, 1, 2)
    x_BTC = F.unfold(padded_BCHW, 2, stride=2).transpose(1, 2)
    if module.post_norm:
        x_BTC = layer_norm(F.linear(x_BTC, module.reduction.weight), module.norm)
    else:
        x_BTC = F.linear(layer_norm(x_BTC, module.norm), module.reduction.weight)
    return x_BTC.unflatten(1, (-(-H // 2), -(-W // 2)))


def absolute_position(model: nn.Module, size: Size) -> Tensor:
    """Resize the absolute position embedding to a map: (1, H, W, C)."""
    embedding_1CHW = model.absolute_pos_embed.transpose(1, 2).unflatten(2, model.pretrain_map_size)
    if model.pretrain_map_size != tuple(size):
        embedding_1CHW = F.interpolate(embedding_1CHW, size=tuple(size), mode='bicubic', align_corners=False)
    return embedding_1CHW.permute(0, 2, 3, 1)


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    return x if isinstance(norm, nn.Identity) else F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def block(module: nn.Module, x_BHWC: Tensor, factors_2B: Optional[Tensor] = None) -> Tensor:
    """Return the output of a block module of any kind."""
    weights, settings = dict(module.named_parameters()), (module.window_size, module.shift)
    if hasattr(module, 'spatial_mlp'):
        return swin_mlp_block(x_BHWC, weights, module.num_heads, *settings, module.small_map, factors_2B)
    attention, cut = module.attn.w_msa, (module.small_map, module.mask_padding)
    if hasattr(attention, 'logit_scale'):
        pretrained = attention.pretrained_window
        return swin_v2_block(x_BHWC, weights, attention.num_heads, *settings, pretrained, *cut, factors_2B)
    return swin_block(x_BHWC, weights, attention.num_heads, *settings, attention.scale, *cut, factors_2B)


# --- Blocks, on state dicts in mmdet's and mmpretrain's names ---------------------------------------------------------


def swin_block(
    x_BHWC: Tensor,
    weights: Weights,
    num_heads: int,
    window_size: Size,
    shift: Size,
    scale: float,
    small_map: str = 'pad',
    mask_padding: bool = False,
    factors_2B: Optional[Tensor] = None,
) -> Tensor:
    """Compute a Swin block (Liu et al. 2021, equation 3) with exact GELU, no dropout and LayerNorms of eps 1e-5."""
    table_window = window_size
    window_size, shift = _fit(x_BHWC, window_size, shift, small_map)
    bias_hNN = bias_from_table(weights['attn.w_msa.relative_position_bias_table'], window_size, table_window)

    def logits(q: Tensor, k: Tensor) -> Tensor:
        return scale * q @ k.transpose(-2, -1) + bias_hNN

    def attention(x: Tensor) -> Tensor:
        qkv_bias = weights.get('attn.w_msa.qkv.bias')
        return _attention(x, weights, qkv_bias, num_heads, logits, window_size, shift, mask_padding)

    a, b = _factors(factors_2B)
    x_BHWC = x_BHWC + a * attention(_norm(x_BHWC, weights, 'norm1'))
    return x_BHWC + b * _mlp(_norm(x_BHWC, weights, 'norm2'), weights)


def swin_v2_block(
    x_BHWC: Tensor,
    weights: Weights,
    num_heads: int,
    window_size: Size,
    shift: Size,
    pretrained_window: Optional[Size] = None,
    small_map: str = 'pad',
    mask_padding: bool = False,
    factors_2B: Optional[Tensor] = None,
) -> Tensor:
    """Compute a Swin V2 block (Liu et al. 2022, figure 1). Weights of `norm3` add a norm on the shortcut.

    Args:
        pretrained_window: the window whose largest offset is 8 on the linear scale of coordinates; None: the window.
    """
    window_size, shift = _fit(x_BHWC, window_size, shift, small_map)
    bias_hNN = continuous_bias(weights, window_size, pretrained_window or window_size)
    scale_h11 = weights['attn.w_msa.logit_scale'].clamp(max=math.log(100)).exp()
    q_bias, v_bias = weights.get('attn.w_msa.q_bias'), weights.get('attn.w_msa.v_bias')
    qkv_bias = None if q_bias is None else torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])

    def logits(q: Tensor, k: Tensor) -> Tensor:  # equation 2
        return scale_h11 * (_directions(q) @ _directions(k).transpose(-2, -1)) + bias_hNN

    a, b = _factors(factors_2B)
    mixed = _attention(x_BHWC, weights, qkv_bias, num_heads, logits, window_size, shift, mask_padding)
    x_BHWC = x_BHWC + a * _norm(mixed, weights, 'norm1')
    x_BHWC = x_BHWC + b * _norm(_mlp(x_BHWC, weights), weights, 'norm2')
    return _norm(x_BHWC, weights, 'norm3') if 'norm3.weight' in weights else x_BHWC


def swin_mlp_block(
    x_BHWC: Tensor,
    weights: Weights,
    num_heads: int,
    window_size: Size,
    shift: Size,
    small_map: str = 'pad',
    factors_2B: Optional[Tensor] = None,
) -> Tensor:
    """Compute a block of Swin-MLP (microsoft/Swin-Transformer): a grouped convolution over the places of a window.

    A shift pads top and left with window - shift zeros. Bottom and right are padded to whole windows.
    """
    _, shift = _fit(x_BHWC, window_size, shift, small_map)

    def mix(x_BHWC: Tensor) -> Tensor:
        H, W = x_BHWC.shape[1:3]
        top, left = (side - by if by else 0 for side, by in zip(window_size, shift))
        bottom, right = -(top + H) % window_size[0], -(left + W) % window_size[1]
        padded = F.pad(x_BHWC, (0, 0, left, right, top, bottom))
        mixed = []
        for x_NC in window_partition(padded, window_size):
            heads_hNd = x_NC.unflatten(1, (num_heads, -1)).transpose(0, 1)
            weight, bias = weights['spatial_mlp.weight'], weights['spatial_mlp.bias']
            places_hNd = F.conv1d(heads_hNd.flatten(0, 1), weight, bias, groups=num_heads).view(heads_hNd.shape)
            mixed.append(places_hNd.transpose(0, 1).flatten(1))
        whole_BHWC = window_reverse(torch.stack(mixed), window_size, (padded.shape[1], padded.shape[2]))
        return whole_BHWC[:, top : top + H, left : left + W]

    a, b = _factors(factors_2B)
    x_BHWC = x_BHWC + a * mix(_norm(x_BHWC, weights, 'norm1'))
    return x_BHWC + b * _mlp(_norm(x_BHWC, weights, 'norm2'), weights)


def _fit(x_BHWC: Tensor, window_size: Size, shift: Size, small_map: str) -> tuple[Size, Size]:
    H, W = x_BHWC.shape[1:3]
    if small_map == 'shrink' and (H <= window_size[0] or W <= window_size[1]):
        return (min(H, W, window_size[0]), min(H, W, window_size[1])), (0, 0)
    return window_size, shift


def _factors(factors_2B: Optional[Tensor]) -> Any:
    return (1.0, 1.0) if factors_2B is None else factors_2B[:, :, None, None, None]


def _norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'], 1e-5)


def _mlp(x: Tensor, weights: Weights) -> Tensor:
    hidden = F.gelu(F.linear(x, weights['ffn.layers.0.0.weight'], weights['ffn.layers.0.0.bias']))
    return F.linear(hidden, weights['ffn.layers.1.weight'], weights['ffn.layers.1.bias'])


# --- Attention in shifted windows -------------------------------------------------------------------------------------


def _attention(
    x_BHWC: Tensor,
    weights: Weights,
    qkv_bias: Optional[Tensor],
    num_heads: int,
    logits: Callable[[Tensor, Tensor], Tensor],
    window_size: Size,
    shift: Size,
    mask_padding: bool,
) -> Tensor:
    """Pad, project to q, k and v, attend inside shifted windows, project."""
    H, W = x_BHWC.shape[1:3]
    padded_height, padded_width = (-(-length // side) * side for length, side in zip((H, W), window_size))
    x_BHWC = F.pad(x_BHWC, (0, 0, 0, padded_width - W, 0, padded_height - H))
    qkv_BHW3C = F.linear(x_BHWC, weights['attn.w_msa.qkv.weight'], qkv_bias)
    y_BHWC = attend(qkv_BHW3C, num_heads, logits, (H, W), window_size, shift, mask_padding)
    return F.linear(y_BHWC, weights['attn.w_msa.proj.weight'], weights['attn.w_msa.proj.bias'])


def attend(
    qkv_BHW3C: Tensor,
    num_heads: int,
    logits: Callable[[Tensor, Tensor], Tensor],
    size: Size,
    window_size: Size,
    shift: Size,
    mask_padding: bool = False,
) -> Tensor:
    """Roll, partition, attend under the mask of regions, reverse, roll back, crop: (B, H, W, C).

    Args:
        qkv_BHW3C: q, k and v of maps, padded to whole windows.
        logits: function of q and k, (L, h, N, d), before the mask.
        size: (H, W), without padding.
    """
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
    """Return the region numbers of the rolled map's tokens. Tokens attend inside a region (figure 4)."""
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


def _directions(x: Tensor) -> Tensor:
    """Divide vectors by the lengths. A vector shorter than 1e-12 becomes 0, with derivatives of 0."""
    is_short = x.detach().norm(dim=-1, keepdim=True) <= 1e-12
    others = x.masked_fill(is_short, 1.0)
    directions: Tensor = others / others.norm(dim=-1, keepdim=True)
    return directions.masked_fill(is_short, 0.0)


# --- Position bias ----------------------------------------------------------------------------------------------------


def continuous_bias(weights: Weights, window_size: Size, pretrained_window: Size) -> Tensor:
    """Return 16 sigmoid(MLP(log-spaced offset)) of all pairs of places, pair by pair: (h, N, N)."""
    places = [(y, x) for y in range(window_size[0]) for x in range(window_size[1])]
    rows = [[_log_spaced(a - b, w) for a, b, w in zip(q, k, pretrained_window)] for q in places for k in places]
    first, bias, last = (weights[f'attn.w_msa.cpb_mlp.{name}'] for name in ('0.weight', '0.bias', '2.weight'))
    hidden = F.relu(F.linear(torch.tensor(rows, dtype=first.dtype, device=first.device), first, bias))
    return 16 * F.linear(hidden, last).sigmoid().view(len(places), len(places), -1).permute(2, 0, 1)


def _log_spaced(offset: int, window: int) -> float:
    """Return sign(x) log2(1 + |x|) / 3 of an offset scaled to x. The largest offset of a window has |x| = 8."""
    return math.copysign(math.log2(1 + abs(8 * offset / max(1, window - 1))) / math.log2(8), offset)


def bias_from_table(table: Tensor, window_size: Size, table_window: Size) -> Tensor:
    """Return the bias of all pairs of places, read by offset, pair by pair: (h, N, N)."""
    places = [(y, x) for y in range(window_size[0]) for x in range(window_size[1])]
    rows = [
        (qy - ky + table_window[0] - 1) * (2 * table_window[1] - 1) + qx - kx + table_window[1] - 1
        for qy, qx in places
        for ky, kx in places
    ]
    return table[torch.tensor(rows, device=table.device)].view(len(places), len(places), -1).permute(2, 0, 1)
