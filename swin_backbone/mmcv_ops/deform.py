"""Deformable convolutions, versions 1 and 2, and multi-scale deformable attention: weighted sums of a map's rows.

autograd of the forward computes the backward, image by image.

Letters: K positions of the kernel, D groups of offsets; bags.py has further letters.
"""

import math
from typing import Optional

import torch
from torch import Tensor

from . import providers
from .bags import cross, even_bags, gradients, sum_bags, wide, zero_padded_corners

Pair = tuple[int, int]


def _convolve(
    x: Tensor,
    offset: Tensor,
    mask: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    offset_groups: int,
) -> Tensor:
    """Return the convolution of (B, C, H, W), differentiable in every tensor.

    Args:
        offset: (B, 2 * D * K, H', W'), for each position first y, then x.
        mask: (B, D * K, H', W'), factors of the samples, or None.
    """
    kernel_height, kernel_width = weight.shape[2:]
    out_height, out_width = (
        (size + 2 * pad - step * (length - 1) - 1) // jump + 1
        for size, pad, step, length, jump in zip(x.shape[2:], padding, dilation, weight.shape[2:], stride)
    )
    num_samples = offset_groups * kernel_height * kernel_width
    offset = _reread(offset, (2 * num_samples, out_height, out_width))
    mask = mask if mask is None else _reread(mask, (num_samples, out_height, out_width))
    kernel = providers.find('deform_conv2d', x)
    if kernel is not None:
        some_mask = mask if mask is not None else x.new_zeros(0)
        some_bias = bias if bias is not None else x.new_zeros(weight.shape[0])
        settings = (*stride, *padding, *dilation, groups, offset_groups, mask is not None)
        out: Tensor = kernel(x, weight, offset, some_mask, some_bias, *settings)
        return out
    batch, channels, height, width = x.shape
    size_K = kernel_height * kernel_width

    def base(out: int, kernel: int, axis: int) -> Tensor:
        """Return the positions of a kernel without offsets, (kernel, out)."""
        starts = torch.arange(out, device=x.device) * stride[axis] - padding[axis]
        return starts + torch.arange(kernel, device=x.device)[:, None] * dilation[axis]

    shift = wide(offset).view(batch, offset_groups, kernel_height, kernel_width, 2, out_height, out_width)
    y = shift[:, :, :, :, 0] + base(out_height, kernel_height, 0)[:, None, :, None]
    x_at = shift[:, :, :, :, 1] + base(out_width, kernel_width, 1)[None, :, None, :]
    # In the order (B, H', W', K, D), the sums of the bags are the columns of a matrix product, channels last.
    y, x_at = (at.flatten(2, 3).permute(0, 3, 4, 2, 1) for at in (y, x_at))
    rows, weights = cross(zero_padded_corners(y, height), zero_padded_corners(x_at, width), width)
    if mask is not None:
        mask = wide(mask).view(batch, offset_groups, size_K, out_height, out_width)
        weights = weights * mask.permute(0, 3, 4, 2, 1)[..., None]
    image = torch.arange(batch, device=x.device).view(-1, 1, 1, 1, 1, 1) * (height * width)
    group = torch.arange(offset_groups, device=x.device)[:, None]
    rows = (rows + image) * offset_groups + group
    map_MC = wide(x).permute(0, 2, 3, 1).reshape(-1, channels // offset_groups)
    columns = sum_bags(map_MC, even_bags(rows, weights))

    columns = columns.view(-1, size_K, groups, channels // groups)
    kernels = wide(weight).view(groups, -1, channels // groups, size_K)
    out = torch.einsum('pkgc,gock->pgo', columns, kernels).flatten(1)
    if bias is not None:
        out = out + wide(bias)
    return out.view(batch, out_height, out_width, -1).permute(0, 3, 1, 2).to(x.dtype)


def _reread(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return the first values of each image in a given shape, as mmcv's kernel reads the memory of a larger map.

    DyHead passes offsets and mask of a finer map, and the published weights were trained so.
    """
    return x if x.shape[1:] == shape else x.flatten(1)[:, : math.prod(shape)].reshape(len(x), *shape)


def _settings(sizes: dict[str, int]) -> tuple[Pair, Pair, Pair, int, int]:
    """Return stride, padding, dilation and groups of version 1; `im2col_step` of mmcv is unused."""
    pairs = [(sizes[f'{name}H'], sizes[f'{name}W']) for name in ('d', 'pad', 'dilation')]
    return *pairs, sizes['group'], sizes['deformable_group']  # type: ignore[return-value]


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor, **sizes: int
) -> None:
    """Write a deformable convolution (DCN v1) into `output`. `columns` and `ones` of mmcv are unused."""
    settings = _settings(sizes)
    for image in _images(input):
        output[image] = _convolve(input[image], offset[image], None, weight, None, *settings)


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **sizes: int,
) -> None:
    """Add the gradient in the map to `gradInput`, and write the gradient in the offsets into `gradOffset`."""
    settings = _settings(sizes)
    for image in _images(input):
        grad_input, grad_offset = gradients(
            lambda x, by: _convolve(x, by, None, weight, None, *settings),
            (input[image], offset[image]),
            gradOutput[image],
        )
        gradInput[image] += grad_input
        gradOffset[image] = grad_offset


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    *,
    scale: float,
    **sizes: int,
) -> None:
    """Add the gradient in the weight, times `scale`, to `gradWeight`."""
    settings = _settings(sizes)
    for image in _images(input):
        x, by = input[image], offset[image]
        (grad,) = gradients(
            lambda weight: _convolve(x, by, None, weight, None, *settings),  # noqa: B023
            (torch.zeros_like(gradWeight),),
            gradOutput[image],
        )
        gradWeight += scale * grad


def _modulated_settings(sizes: dict[str, int]) -> tuple[Pair, Pair, Pair, int, int]:
    pairs = [(sizes[f'{name}_h'], sizes[f'{name}_w']) for name in ('stride', 'pad', 'dilation')]
    return *pairs, sizes['group'], sizes['deformable_group']  # type: ignore[return-value]


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    *,
    with_bias: bool,
    **sizes: int,
) -> None:
    """Write a deformable convolution with weighted samples (DCN v2) into `output`."""
    settings = _modulated_settings(sizes)
    for image in _images(input):
        some_bias = bias if with_bias else None
        output[image] = _convolve(input[image], offset[image], mask[image], weight, some_bias, *settings)


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    *,
    with_bias: bool,
    **sizes: int,
) -> None:
    """Add the gradients of input, weight and bias to the given tensors, and write the gradients of offset and mask."""
    settings = _modulated_settings(sizes)
    for image in _images(input):
        inputs = input[image], offset[image], mask[image], weight
        parts = gradients(
            lambda x, by, mask, weight: _convolve(x, by, mask, weight, None, *settings), inputs, grad_output[image]
        )
        grad_input[image] += parts[0]
        grad_offset[image], grad_mask[image] = parts[1:3]
        grad_weight += parts[3]
    if with_bias:
        grad_bias += grad_output.sum((0, 2, 3))


def _images(x: Tensor) -> list[slice]:
    """Return a slice per image: the columns of an image take 9 times the memory of the map."""
    return [slice(index, index + 1) for index in range(len(x))]


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Return multi-scale deformable attention (Deformable DETR).

    Args:
        value: (B, positions of all levels, heads, channels of a head).
        value_spatial_shapes: (levels, 2), heights and widths.
        value_level_start_index: (levels,), first position of each level.
        sampling_locations: (B, queries, heads, levels, points, 2), x and y as fractions of the level's size.
        attention_weights: (B, queries, heads, levels, points).

    Returns:
        (B, queries, heads * channels of a head).
    """
    batch, positions, heads, channels = value.shape
    queries = sampling_locations.shape[1]
    rows, weights = [], []
    for level, (height, width) in enumerate(value_spatial_shapes.tolist()):
        x, y = (wide(sampling_locations[:, :, :, level]) * value_spatial_shapes[level].flip(0) - 0.5).unbind(-1)
        rows_4, weights_4 = cross(zero_padded_corners(y, height), zero_padded_corners(x, width), width)
        rows.append(rows_4 + value_level_start_index[level])
        weights.append(weights_4 * wide(attention_weights[:, :, :, level])[..., None])
    image = torch.arange(batch, device=value.device).view(-1, 1, 1, 1) * positions
    head = torch.arange(heads, device=value.device)[:, None]
    rows_of_map = (torch.stack(rows, 3).flatten(3) + image) * heads + head
    map_MC = wide(value).reshape(-1, channels)
    out = sum_bags(map_MC, even_bags(rows_of_map, torch.stack(weights, 3).flatten(3)))
    return out.view(batch, queries, heads * channels).to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Add the gradients to the three given tensors."""

    def attend(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return ms_deform_attn_forward(
            value, value_spatial_shapes, value_level_start_index, locations, weights, im2col_step
        )

    parts = gradients(attend, (value, sampling_locations, attention_weights), grad_output)
    for target, part in zip((grad_value, grad_sampling_loc, grad_attn_weight), parts):
        target += part
