"""Compute layers for every size by operators of every runtime: deformable layers by `grid_sample`, adaptive pooling.

Layout: B batch, Q queries, C channels, T tokens of all levels, h heads, d channels of a head, P points of a head and
level, G groups, K places of a kernel, H W height and width, n m bins.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....sizes import Size
from ..picture import Content

LevelSizes = Sequence[Size]  # by level; sides are maybe symbolic


def copy_for_graph(module: Any) -> Any:
    """Copy a module, with the layers of this file in the place of its own."""
    from mmcv.ops import DeformConv2d, ModulatedDeformConv2d, MultiScaleDeformableAttention

    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for layer in parent.children():
            if isinstance(layer, MultiScaleDeformableAttention):
                layer.forward = partial(graph_deformable_attention, layer)
            elif isinstance(layer, (DeformConv2d, ModulatedDeformConv2d)):
                layer.forward = partial(graph_deformable_convolution, layer, type(parent).__name__ == 'DyDCNv2')
            elif isinstance(layer, nn.AdaptiveAvgPool2d):
                layer.forward = partial(adaptive_avg_pool, layer.output_size)  # type: ignore[method-assign]
    if hasattr(module, 'deform_sampling'):  # TOODHead samples every channel at a different place
        module.deform_sampling = lambda x, offset: sample_deformed(
            x, offset, (1, 1), (1, 1), (0, 0), (1, 1), x.shape[1]
        )[:, :, 0]
    return module


def graph_deformable_attention(
    layer: Any,
    query: Tensor,
    key: Optional[Tensor] = None,
    value: Optional[Tensor] = None,
    identity: Optional[Tensor] = None,
    query_pos: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    reference_points: Any = None,
    spatial_shapes: LevelSizes = (),
    **_: Any,
) -> Tensor:
    """Compute mmcv's MultiScaleDeformableAttention with free sizes of levels.

    Args:
        query, query_pos: (B, Q, C).
        value: (B, T, C).
        key_padding_mask: True for tokens of the padding, (B, T).
        reference_points: places or boxes from 0 to 1, (B, Q, levels, 2 or 4).
        spatial_shapes: the sizes of the levels.
    """
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    from ....openmmlab.layers.deformable_attention import prepare_samples

    sides_L2 = torch.stack([make_size_tensor(W, H, query) for H, W in spatial_shapes])
    values, locations, weights = prepare_samples(
        layer, query, value, query_pos, key_padding_mask, reference_points, sides_L2
    )
    out: Tensor = layer.output_proj(multi_scale_deformable_attn_pytorch(values, spatial_shapes, locations, weights))
    identity = query if identity is None else identity
    return identity + (out if layer.batch_first else out.transpose(0, 1))


def flatten_maps(maps: Sequence[Tensor]) -> Tensor:
    """Return the tokens of maps (B, C, H, W), level after level: (B, T, C)."""
    return torch.cat([x.flatten(2) for x in maps], 2).transpose(1, 2)


def list_level_sizes(maps: Sequence[Tensor]) -> LevelSizes:
    """Return height and width of maps."""
    return [(x.shape[-2], x.shape[-1]) for x in maps]


def make_padding_masks(content: Content, sizes: LevelSizes) -> list[Tensor]:
    """Return maps with True for the padding, (1, H, W), by the nearest pixel of the image."""
    rows, columns = (
        [flags[[i * len(flags) // length for i in range(length)]] for length in lengths]
        for flags, lengths in zip(content, zip(*sizes))
    )
    return [~(is_row_H[:, None] & is_column_W)[None] for is_row_H, is_column_W in zip(rows, columns)]


def compute_valid_ratios(masks: Sequence[Tensor]) -> Tensor:
    """Return the shares of width and height without padding, (1, levels, 2)."""
    ratios = [torch.stack([(~x[:, 0]).float().mean(1), (~x[..., 0]).float().mean(1)], 1) for x in masks]
    return torch.stack(ratios, 1)


def find_token_places(sizes: LevelSizes, ratios_1L2: Tensor) -> Tensor:
    """Return the centres of the tokens, from 0 to 1 in the content and x before y: (1, T, 2)."""
    levels = []
    for level, (H, W) in enumerate(sizes):
        y_H, x_W = ((torch.arange(n, device=ratios_1L2.device).to(ratios_1L2.dtype) + 0.5) / n for n in (H, W))
        centre_HW2 = torch.stack([x_W.expand(H, W), y_H[:, None].expand(H, W)], -1)
        levels.append(centre_HW2.flatten(0, 1) / ratios_1L2[0, level])
    return torch.cat(levels)[None]


def find_token_centres(sizes: LevelSizes, ratios_1L2: Tensor) -> Tensor:
    """Return the centres of the tokens in the maps of all levels: (1, T, levels, 2)."""
    return find_token_places(sizes, ratios_1L2)[:, :, None] * ratios_1L2[:, None]


def make_size_tensor(height: int, width: int, like: Tensor) -> Tensor:
    """Return height and width, maybe symbolic, as float values (2,)."""
    return torch.stack([torch.scalar_tensor(side, dtype=like.dtype, device=like.device) for side in (height, width)])


def graph_deformable_convolution(
    layer: Any, rereads: bool, x: Tensor, offset: Optional[Tensor] = None, mask: Optional[Tensor] = None
) -> Tensor:
    """Compute mmcv's DeformConv2d or ModulatedDeformConv2d. A layer with `conv_offset` computes the offsets.

    Args:
        rereads: whether offsets and mask may be of a larger map, as in DyHead. mmcv reads their first values.
    """
    if rereads and offset is not None and mask is not None:
        size = [-(-length // layer.stride[0]) for length in x.shape[2:]]  # a kernel of 3 with a padding of 1
        offset, mask = (
            t.flatten(1)[:, : t.shape[1] * size[0] * size[1]].unflatten(1, (-1, *size)) for t in (offset, mask)
        )
    if offset is None:
        offset = layer.conv_offset(x)
        if 'Modulated' in type(layer).__name__:
            offset, mask = offset.tensor_split((2 * offset.shape[1] // 3,), 1)
            mask = mask.sigmoid()
    G = layer.deform_groups
    stride, padding, dilation = (
        value if isinstance(value, tuple) else (value, value) for value in (layer.stride, layer.padding, layer.dilation)
    )
    samples_BCKHW = sample_deformed(x, offset, layer.kernel_size, stride, padding, dilation, G)
    if mask is not None:
        mask_BG1KHW = mask.unflatten(1, (G, 1, samples_BCKHW.shape[2]))
        samples_BCKHW = (samples_BCKHW.unflatten(1, (G, -1)) * mask_BG1KHW).flatten(1, 2)
    weight = layer.weight.flatten(1)[..., None, None]
    return F.conv2d(samples_BCKHW.flatten(1, 2), weight, getattr(layer, 'bias', None), groups=layer.groups)


def sample_deformed(
    x: Tensor, offset: Tensor, kernel: Size, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Return the inputs of a deformable convolution's products: (B, C, K, H, W) of the output.

    Args:
        offset: (B, groups * K * 2, H, W), y before x.
    """
    B, C, rows, columns = x.shape
    H, W = offset.shape[-2:]
    tap_K = torch.arange(kernel[0] * kernel[1], device=x.device)
    y_K, x_K = ((tap_K // kernel[1]).to(x.dtype) * dilation[0], (tap_K % kernel[1]).to(x.dtype) * dilation[1])
    y_H, x_W = (
        torch.arange(length, device=x.device).to(x.dtype) * step - pad
        for length, step, pad in zip((H, W), stride, padding)
    )
    offset = offset.reshape(B * groups, -1, 2, H, W)
    y = (y_K[:, None, None] + y_H[:, None]) + offset[:, :, 0]
    x_place = (x_K[:, None, None] + x_W) + offset[:, :, 1]
    height, width = make_size_tensor(rows, columns, x)
    grid = torch.stack([(2 * x_place + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    maps = x.reshape(B * groups, C // groups, rows, columns)
    samples = F.grid_sample(maps, grid.flatten(1, 2), mode='bilinear', padding_mode='zeros', align_corners=False)
    return samples.reshape(B, C, len(tap_K), H, W)


def adaptive_avg_pool(output_size: Any, x_BCHW: Tensor) -> Tensor:
    """Compute `F.adaptive_avg_pool2d`. An exporter would fix the bins to the example's size.

    Bin i of n on an axis of length L averages floor(i L / n) to ceil((i + 1) L / n). Every axis has a matrix (n, L).
    """
    counts = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    rows_nH, columns_mW = (_weigh_bins(n, length, x_BCHW) for n, length in zip(counts, x_BCHW.shape[-2:]))
    return rows_nH @ x_BCHW @ columns_mW.t()


def _weigh_bins(count: int, length: int, like: Tensor) -> Tensor:
    bin_n1 = torch.arange(count, device=like.device)[:, None]
    position_L = torch.arange(length, device=like.device)
    # i L // n <= position and position < ceil((i + 1) L / n), without a division
    inside_nL = ((position_L + 1) * count > bin_n1 * length) & (position_L * count < (bin_n1 + 1) * length)
    weights_nL = inside_nL.to(like.dtype)
    return weights_nL / weights_nL.sum(1, keepdim=True)
