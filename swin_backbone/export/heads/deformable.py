"""Compute mmcv's deformable layers with bilinear samples of `grid_sample`, an operator of every runtime.

Layout: B batch, Q queries, C channels, T tokens of all levels, h heads, d channels of a head, P points of a head and
level, G groups, K places of a kernel, H W height and width.
"""

import copy
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]  # height and width, maybe symbolic
Sizes = Sequence[Size]  # by level


def replace_deformable(module: Any) -> Any:
    """Copy a module, with the deformable layers of the file."""
    from mmcv.ops import DeformConv2d, ModulatedDeformConv2d, MultiScaleDeformableAttention

    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, MultiScaleDeformableAttention):
                setattr(parent, name, SampledAttention(layer))
            elif isinstance(layer, (DeformConv2d, ModulatedDeformConv2d)):
                setattr(parent, name, SampledConv(layer, rereads=type(parent).__name__ == 'DyDCNv2'))
    if hasattr(module, 'deform_sampling'):  # TOODHead samples every channel at a different place
        module.deform_sampling = lambda x, offset: sampled(x, offset, (1, 1), (1, 1), (0, 0), (1, 1), x.shape[1])[
            :, :, 0
        ]
    return module


class SampledAttention(nn.Module):
    """mmcv's MultiScaleDeformableAttention with free sizes of levels."""

    def __init__(self, attention: Any):
        super().__init__()
        self.attention = attention

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        identity: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        reference_points: Any = None,
        spatial_shapes: Sizes = (),
        **_: Any,
    ) -> Tensor:
        """
        Args:
            query, query_pos: (B, Q, C).
            value: (B, T, C).
            reference_points: places or boxes from 0 to 1, (B, Q, levels, 2 or 4).
            spatial_shapes: the sizes of the levels.
        """
        ours = self.attention
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        if not ours.batch_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        B, Q, _C = query.shape
        h, levels, P = ours.num_heads, ours.num_levels, ours.num_points
        offsets = ours.sampling_offsets(query).view(B, Q, h, levels, P, 2)
        weights = ours.attention_weights(query).view(B, Q, h, levels * P).softmax(-1).view(B, Q, h, levels, P)
        total: Any = 0
        for level, (value_BTC, (H, W)) in enumerate(
            zip(split_levels(ours.value_proj(value), spatial_shapes), spatial_shapes)
        ):
            d = value_BTC.shape[-1] // h
            map_BdHW = value_BTC.view(B, H * W, h, d).permute(0, 2, 3, 1).reshape(B * h, d, H, W)
            where = reference_points[:, :, None, level, None]  # B, Q, 1, 1, 2 or 4
            if where.shape[-1] == 2:
                step = offsets[:, :, :, level] / size_tensor(W, H, query)
            else:
                step = offsets[:, :, :, level] / P * where[..., 2:] * 0.5
            grid = (2 * (where[..., :2] + step) - 1).transpose(1, 2).reshape(B * h, Q, P, 2)
            seen = F.grid_sample(map_BdHW, grid, mode='bilinear', padding_mode='zeros', align_corners=False)
            total = total + (seen * weights[:, :, :, level].transpose(1, 2).reshape(B * h, 1, Q, P)).sum(-1)
        out: Tensor = ours.output_proj(total.view(B, h * d, Q).transpose(1, 2))
        y: Tensor = identity + (out if ours.batch_first else out.transpose(0, 1))
        return y


def split_levels(x_BTC: Tensor, sizes: Sizes) -> list[Tensor]:
    """Return the tokens by level."""
    parts, start = [], 0
    for H, W in sizes:
        parts.append(x_BTC[:, start : start + H * W])
        start = start + H * W
    return parts


def centres(sizes: Sizes, like: Tensor) -> Tensor:
    """Return the centres of the tokens, from 0 to 1: (T, 2), x before y."""
    levels = []
    for H, W in sizes:
        y_H, x_W = ((torch.arange(n, device=like.device).to(like.dtype) + 0.5) / n for n in (H, W))
        levels.append(torch.stack([x_W[None].expand(H, W), y_H[:, None].expand(H, W)], -1).reshape(H * W, 2))
    return torch.cat(levels)


def size_tensor(height: int, width: int, like: Tensor) -> Tensor:
    """Return height and width, maybe symbolic, as float values (2,)."""
    return torch.stack([torch.scalar_tensor(side, dtype=like.dtype, device=like.device) for side in (height, width)])


class SampledConv(nn.Module):
    """mmcv's DeformConv2d and ModulatedDeformConv2d. A layer with `conv_offset` computes the offsets.

    Args:
        rereads: whether offsets and mask may be of a larger map, as in DyHead. mmcv reads their first values.
    """

    def __init__(self, layer: Any, rereads: bool = False):
        super().__init__()
        self.layer, self.rereads = layer, rereads

    def forward(self, x: Tensor, offset: Optional[Tensor] = None, mask: Optional[Tensor] = None) -> Tensor:
        ours = self.layer
        if self.rereads and offset is not None and mask is not None:
            size = [-(-length // ours.stride[0]) for length in x.shape[2:]]  # a kernel of 3 with a padding of 1
            offset, mask = (
                t.flatten(1)[:, : t.shape[1] * size[0] * size[1]].unflatten(1, (-1, *size)) for t in (offset, mask)
            )
        if offset is None:
            offset = ours.conv_offset(x)
            if 'Modulated' in type(ours).__name__:
                offset, mask = offset.tensor_split((2 * offset.shape[1] // 3,), 1)
                mask = mask.sigmoid()
        G = ours.deform_groups
        stride, padding, dilation = (
            value if isinstance(value, tuple) else (value, value)
            for value in (ours.stride, ours.padding, ours.dilation)
        )
        seen_BCKHW = sampled(x, offset, ours.kernel_size, stride, padding, dilation, G)
        if mask is not None:
            mask_BG1KHW = mask.unflatten(1, (G, 1, seen_BCKHW.shape[2]))
            seen_BCKHW = (seen_BCKHW.unflatten(1, (G, -1)) * mask_BG1KHW).flatten(1, 2)
        weight = ours.weight.flatten(1)[..., None, None]
        return F.conv2d(seen_BCKHW.flatten(1, 2), weight, getattr(ours, 'bias', None), groups=ours.groups)


def sampled(
    x: Tensor, offset: Tensor, kernel: Size, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Return the inputs of a deformable convolution's products: (B, C, K, H, W) of the output.

    Args:
        offset: (B, groups * K * 2, H, W), y before x.
    """
    B, C, rows, columns = x.shape
    H, W = offset.shape[-2:]
    place_K = torch.arange(kernel[0] * kernel[1], device=x.device)
    y_K, x_K = ((place_K // kernel[1]).to(x.dtype) * dilation[0], (place_K % kernel[1]).to(x.dtype) * dilation[1])
    y_H, x_W = (
        torch.arange(length, device=x.device).to(x.dtype) * step - pad
        for length, step, pad in zip((H, W), stride, padding)
    )
    offset = offset.reshape(B * groups, -1, 2, H, W)
    y = (y_K[:, None, None] + y_H[:, None]) + offset[:, :, 0]
    x_place = (x_K[:, None, None] + x_W) + offset[:, :, 1]
    height, width = size_tensor(rows, columns, x)
    grid = torch.stack([(2 * x_place + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    maps = x.reshape(B * groups, C // groups, rows, columns)
    seen = F.grid_sample(maps, grid.flatten(1, 2), mode='bilinear', padding_mode='zeros', align_corners=False)
    return seen.reshape(B, C, len(place_K), H, W)
