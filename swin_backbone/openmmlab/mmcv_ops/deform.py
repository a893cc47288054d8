"""Deformable convolutions, versions 1 and 2, as weighted sums of a map's rows; multi-scale deformable attention.

autograd of the forward computes the backward, image by image.

Letters: K positions of the kernel, D groups of offsets; bags.py has further letters.
"""

import math
from functools import partial
from typing import Optional

import torch
from torch import Tensor

from . import providers
from .bags import cross, even_bags, gradients, sum_bags, wide, zero_padded_corners

Pair = tuple[int, int]
Settings = tuple[Pair, Pair, Pair, int, int]  # stride, padding, dilation, groups, groups of offsets


def _convolve(
    settings: Settings, weight: Tensor, x_1CHW: Tensor, offset: Tensor, mask: Optional[Tensor] = None
) -> Tensor:
    """Return the convolution of an image, differentiable in every tensor.

    Args:
        offset: (1, 2 * D * K, H', W'), for each position first y, then x.
        mask: (1, D * K, H', W'), factors of the samples. Default: 1.
    """
    stride, padding, dilation, groups, offset_groups = settings
    kernel_height, kernel_width = weight.shape[2:]
    out_height, out_width = (
        (size + 2 * pad - step * (length - 1) - 1) // jump + 1
        for size, pad, step, length, jump in zip(x_1CHW.shape[2:], padding, dilation, weight.shape[2:], stride)
    )
    num_samples = offset_groups * kernel_height * kernel_width
    offset = _reread(offset, (2 * num_samples, out_height, out_width))
    mask = torch.ones_like(offset[:, ::2]) if mask is None else _reread(mask, (num_samples, out_height, out_width))
    if providers.torchvision_takes('deform_conv2d', x_1CHW):
        tensors = x_1CHW, weight, offset, mask, weight.new_zeros(len(weight))
        numbers = *stride, *padding, *dilation, groups, offset_groups
        out: Tensor = torch.ops.torchvision.deform_conv2d(*tensors, *numbers, True)
        return out
    channels, height, width = x_1CHW.shape[1:]
    size_K = kernel_height * kernel_width

    def base(out: int, kernel: int, axis: int) -> Tensor:
        """Return the positions of a kernel without offsets, (kernel, out)."""
        starts = torch.arange(out, device=x_1CHW.device) * stride[axis] - padding[axis]
        return starts + torch.arange(kernel, device=x_1CHW.device)[:, None] * dilation[axis]

    shift = wide(offset).view(offset_groups, kernel_height, kernel_width, 2, out_height, out_width)
    y = shift[:, :, :, 0] + base(out_height, kernel_height, 0)[:, None, :, None]
    x = shift[:, :, :, 1] + base(out_width, kernel_width, 1)[None, :, None, :]
    # In the order (H', W', K, D), the sums of the bags are the columns of a matrix product, channels last.
    y, x = (at.flatten(1, 2).permute(2, 3, 1, 0) for at in (y, x))
    rows, weights = cross(zero_padded_corners(y, height), zero_padded_corners(x, width), width)
    mask = wide(mask).view(offset_groups, size_K, out_height, out_width)
    weights = weights * mask.permute(2, 3, 1, 0)[..., None]
    rows = rows * offset_groups + torch.arange(offset_groups, device=x_1CHW.device)[:, None]
    map_MC = wide(x_1CHW[0]).permute(1, 2, 0).reshape(-1, channels // offset_groups)
    columns = sum_bags(map_MC, even_bags(rows, weights)).view(-1, size_K, groups, channels // groups)
    kernels = wide(weight).view(groups, -1, channels // groups, size_K)
    out_PC = torch.einsum('pkgc,gock->pgo', columns, kernels).flatten(1)
    return out_PC.t().reshape(1, -1, out_height, out_width).to(x_1CHW.dtype)


def _reread(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return the first values of each image in a given shape, as mmcv's kernel reads the memory of a larger map.

    DyHead passes offsets and mask of a finer map, and the published weights were trained so.
    """
    return x if x.shape[1:] == shape else x.flatten(1)[:, : math.prod(shape)].reshape(len(x), *shape)


def _settings(sizes: dict[str, int], *names: tuple[str, str]) -> Settings:
    """Return the settings. `names` has the first three, down and across."""
    stride, padding, dilation = ((sizes[down], sizes[across]) for down, across in names)
    return stride, padding, dilation, sizes['group'], sizes['deformable_group']


VERSION_1 = ('dH', 'dW'), ('padH', 'padW'), ('dilationH', 'dilationW')
VERSION_2 = ('stride_h', 'stride_w'), ('pad_h', 'pad_w'), ('dilation_h', 'dilation_w')


def _gradients(settings: Settings, grad_output: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return the gradients of the tensors: weight, input, offset and, if given, mask."""
    weight, *others = tensors
    of_weight, *of_others = of_tensors = [torch.zeros_like(x) for x in tensors]
    for image in _images(grad_output):
        parts = gradients(partial(_convolve, settings), (weight, *(x[image] for x in others)), grad_output[image])
        of_weight += parts[0]
        for target, part in zip(of_others, parts[1:]):
            target[image] = part
    return of_tensors


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor, **sizes: int
) -> None:
    """Write a deformable convolution (DCN v1) into `output`. `columns`, `ones` and `im2col_step` of mmcv are unused."""
    for image in _images(input):
        output[image] = _convolve(_settings(sizes, *VERSION_1), weight, input[image], offset[image])


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
    _, of_input, of_offset = _gradients(_settings(sizes, *VERSION_1), gradOutput, weight, input, offset)
    gradInput += of_input
    gradOffset.copy_(of_offset)


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
    weight = torch.zeros_like(gradWeight)  # mmcv passes no weight: the gradient does not depend on it
    gradWeight += scale * _gradients(_settings(sizes, *VERSION_1), gradOutput, weight, input, offset)[0]


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
    for image in _images(input):
        output[image] = _convolve(_settings(sizes, *VERSION_2), weight, input[image], offset[image], mask[image])
    if with_bias:
        output += bias[:, None, None]


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
    parts = _gradients(_settings(sizes, *VERSION_2), grad_output, weight, input, offset, mask)
    grad_weight += parts[0]
    grad_input += parts[1]
    grad_offset.copy_(parts[2])
    grad_mask.copy_(parts[3])
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
    """Return multi-scale deformable attention (Deformable DETR) by mmcv's own function for CPUs, with sums in float32.

    The starts of the levels and `im2col_step` are unused.
    """
    return _attend(value_spatial_shapes, value, sampling_locations, attention_weights)


def _attend(shapes: Tensor, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    attended: Tensor = multi_scale_deformable_attn_pytorch(wide(value), shapes, wide(locations), wide(weights))
    return attended.to(value.dtype)


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
    attend = partial(_attend, value_spatial_shapes)
    parts = gradients(attend, (value, sampling_locations, attention_weights), grad_output)
    for target, part in zip((grad_value, grad_sampling_loc, grad_attn_weight), parts):
        target += part
