"""The paper's algorithms, written literally. All comparisons use the algorithms for the truth.

The file reads parameters and settings of modules, and shares no code with the package. The position bias is read pair
by pair.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels of a
head.
"""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]


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


# --- Blocks -----------------------------------------------------------------------------------------------------------


def block(module: nn.Module, x_BHWC: Tensor, factors_2B: Optional[Tensor] = None) -> Tensor:
    """Return the output of a block with exact GELU and no dropout.

    Swin and Swin-MLP: Liu et al. 2021, equation 3. Swin V2: Liu et al. 2022, figure 1.
    """
    a, b = (1.0, 1.0) if factors_2B is None else factors_2B[:, :, None, None, None]
    window_size, shift = _fit(module, x_BHWC)
    if hasattr(module, 'spatial_mlp'):
        x_BHWC = x_BHWC + a * mix_places(module, layer_norm(x_BHWC, module.norm1), shift)
    elif hasattr(module.attn.w_msa, 'logit_scale'):
        mixed_BHWC = attention(module.attn.w_msa, x_BHWC, window_size, shift, module.mask_padding)
        x_BHWC = x_BHWC + a * layer_norm(mixed_BHWC, module.norm1)
        x_BHWC = x_BHWC + b * layer_norm(mlp(module, x_BHWC), module.norm2)
        return x_BHWC if module.norm3 is None else layer_norm(x_BHWC, module.norm3)
    else:
        normed_BHWC = layer_norm(x_BHWC, module.norm1)
        x_BHWC = x_BHWC + a * attention(module.attn.w_msa, normed_BHWC, window_size, shift, module.mask_padding)
    return x_BHWC + b * mlp(module, layer_norm(x_BHWC, module.norm2))


def _fit(module: nn.Module, x_BHWC: Tensor) -> tuple[Size, Size]:
    (H, W), window_size = x_BHWC.shape[1:3], module.window_size
    if module.small_map == 'shrink' and (H <= window_size[0] or W <= window_size[1]):
        return (min(H, W, window_size[0]), min(H, W, window_size[1])), (0, 0)
    return window_size, module.shift


def mlp(module: nn.Module, x: Tensor) -> Tensor:
    first, last = module.ffn.layers[0][0], module.ffn.layers[1]
    return F.linear(F.gelu(F.linear(x, first.weight, first.bias)), last.weight, last.bias)


def mix_places(module: nn.Module, x_BHWC: Tensor, shift: Size) -> Tensor:
    """Mix the places of windows by a grouped convolution (microsoft/Swin-Transformer, Swin-MLP).

    A shift pads top and left with window - shift zeros. Bottom and right are padded to whole windows.
    """
    (H, W), window_size, mixing = x_BHWC.shape[1:3], module.window_size, module.spatial_mlp
    top, left = (side - by if by else 0 for side, by in zip(window_size, shift))
    bottom, right = -(top + H) % window_size[0], -(left + W) % window_size[1]
    padded = F.pad(x_BHWC, (0, 0, left, right, top, bottom))
    mixed = []
    for x_NC in window_partition(padded, window_size):
        heads_hNd = x_NC.unflatten(1, (module.num_heads, -1)).transpose(0, 1)
        places = F.conv1d(heads_hNd.flatten(0, 1), mixing.weight, mixing.bias, groups=module.num_heads)
        mixed.append(places.view(heads_hNd.shape).transpose(0, 1).flatten(1))
    whole_BHWC = window_reverse(torch.stack(mixed), window_size, (padded.shape[1], padded.shape[2]))
    return whole_BHWC[:, top : top + H, left : left + W]


# --- Attention in shifted windows -------------------------------------------------------------------------------------


def attention(w_msa: nn.Module, x_BHWC: Tensor, window_size: Size, shift: Size, mask_padding: bool) -> Tensor:
    """Pad, project to q, k and v, attend inside shifted windows under the mask of regions, crop, project."""
    B, H, W, _ = x_BHWC.shape
    padded_height, padded_width = padded = tuple(-(-n // side) * side for n, side in zip((H, W), window_size))
    x_BHWC = F.pad(x_BHWC, (0, 0, 0, padded_width - W, 0, padded_height - H))
    qkv_BHW3C = F.linear(x_BHWC, w_msa.qkv.weight, qkv_bias(w_msa))
    qkv_LN3C = window_partition(qkv_BHW3C.roll((-shift[0], -shift[1]), dims=(1, 2)), window_size)
    q, k, v = qkv_LN3C.unflatten(2, (3, w_msa.num_heads, -1)).permute(2, 0, 3, 1, 4)
    regions_HW = _regions((H, W), padded, window_size, shift, mask_padding).to(x_BHWC.device)
    regions_LN = window_partition(regions_HW[None, :, :, None].expand(B, -1, -1, -1), window_size)[..., 0]
    apart_LNN = regions_LN[:, :, None] != regions_LN[:, None, :]
    weights_LhNN = logits(w_msa, q, k, window_size).masked_fill(apart_LNN[:, None], -torch.inf).softmax(-1)
    x_LNC = (weights_LhNN.to(v.dtype) @ v).transpose(1, 2).flatten(2)
    x_BHWC = window_reverse(x_LNC, window_size, padded).roll(shift, dims=(1, 2))[:, :H, :W]
    return F.linear(x_BHWC, w_msa.proj.weight, w_msa.proj.bias)


def qkv_bias(w_msa: nn.Module) -> Optional[Tensor]:
    """Return the bias of query, key and value. Keys of Swin V2 have no bias."""
    if hasattr(w_msa, 'q_bias') and w_msa.q_bias is not None:
        return torch.cat([w_msa.q_bias, torch.zeros_like(w_msa.q_bias), w_msa.v_bias])
    return w_msa.qkv.bias


def logits(w_msa: nn.Module, q: Tensor, k: Tensor, window_size: Size) -> Tensor:
    """Return the logits (L, h, N, N), before the mask: equation 4 of Swin, equation 2 of Swin V2."""
    if hasattr(w_msa, 'logit_scale'):
        scale_h11 = w_msa.logit_scale.clamp(max=math.log(100)).exp()
        bias_hNN = continuous_bias(w_msa.cpb_mlp, window_size, w_msa.pretrained_window or window_size)
        return scale_h11 * (_directions(q) @ _directions(k).transpose(-2, -1)) + bias_hNN
    bias_hNN = bias_from_table(w_msa.relative_position_bias_table, window_size, w_msa.window_size)
    return w_msa.scale * q @ k.transpose(-2, -1) + bias_hNN


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


def continuous_bias(cpb_mlp: nn.Module, window_size: Size, pretrained_window: Size) -> Tensor:
    """Return 16 sigmoid(MLP(log-spaced offset)) of all pairs of places, pair by pair: (h, N, N).

    Args:
        pretrained_window: the window whose largest offset is 8 on the linear scale of coordinates.
    """
    places = [(y, x) for y in range(window_size[0]) for x in range(window_size[1])]
    rows = [[_log_spaced(a - b, w) for a, b, w in zip(q, k, pretrained_window)] for q in places for k in places]
    first, last = cpb_mlp[0], cpb_mlp[2]
    offsets = torch.tensor(rows, dtype=first.weight.dtype, device=first.weight.device)
    hidden = F.relu(F.linear(offsets, first.weight, first.bias))
    return 16 * F.linear(hidden, last.weight).sigmoid().view(len(places), len(places), -1).permute(2, 0, 1)


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
