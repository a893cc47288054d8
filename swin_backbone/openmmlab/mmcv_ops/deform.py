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
from .bags import combine_axes, differentiate, find_zero_padded_corners, make_even_bags, sum_bags, widen

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
        return torch.ops.torchvision.deform_conv2d(*tensors, *numbers, True)
    channels, height, width = x_1CHW.shape[1:]
    size_K = kernel_height * kernel_width

    def find_base(out: int, kernel: int, axis: int) -> Tensor:
        """Return the positions of a kernel without offsets, (kernel, out)."""
        starts = torch.arange(out, device=x_1CHW.device) * stride[axis] - padding[axis]
        return starts + torch.arange(kernel, device=x_1CHW.device)[:, None] * dilation[axis]

    shift = widen(offset).view(offset_groups, kernel_height, kernel_width, 2, out_height, out_width)
    y = shift[:, :, :, 0] + find_base(out_height, kernel_height, 0)[:, None, :, None]
    x = shift[:, :, :, 1] + find_base(out_width, kernel_width, 1)[None, :, None, :]
    # In the order (H', W', K, D), the sums of the bags are the columns of a matrix product, channels last.
    y, x = (at.flatten(1, 2).permute(2, 3, 1, 0) for at in (y, x))
    rows, weights = combine_axes(find_zero_padded_corners(y, height), find_zero_padded_corners(x, width), width)
    mask = widen(mask).view(offset_groups, size_K, out_height, out_width)
    weights = weights * mask.permute(2, 3, 1, 0)[..., None]
    rows = rows * offset_groups + torch.arange(offset_groups, device=x_1CHW.device)[:, None]
    map_MC = widen(x_1CHW[0]).permute(1, 2, 0).reshape(-1, channels // offset_groups)
    columns = sum_bags(map_MC, make_even_bags(rows, weights)).view(-1, size_K, groups, channels // groups)
    kernels = widen(weight).view(groups, -1, channels // groups, size_K)
    out_PC = torch.einsum('pkgc,gock->pgo', columns, kernels).flatten(1)
    return out_PC.t().reshape(1, -1, out_height, out_width).to(x_1CHW.dtype)


def _reread(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return the first values of each image in a given shape, as mmcv's kernel reads the memory of a larger map.

    DyHead passes offsets and mask of a finer map, and the published weights were trained so.
    """
    return x if x.shape[1:] == shape else x.flatten(1)[:, : math.prod(shape)].reshape(len(x), *shape)


def _read_settings(sizes: dict[str, int], *names: tuple[str, str]) -> Settings:
    """Return the settings. `names` has the first three, down and across."""
    stride, padding, dilation = ((sizes[down], sizes[across]) for down, across in names)
    return stride, padding, dilation, sizes['group'], sizes['deformable_group']


VERSION_1 = ('dH', 'dW'), ('padH', 'padW'), ('dilationH', 'dilationW')
VERSION_2 = ('stride_h', 'stride_w'), ('pad_h', 'pad_w'), ('dilation_h', 'dilation_w')


def _sum_gradients(settings: Settings, grad_output: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return the gradients of the tensors: weight, input, offset and, if given, mask."""
    weight, *others = tensors
    weight_grad, *other_grads = gradients = [torch.zeros_like(x) for x in tensors]
    for image in _slice_images(grad_output):
        inputs = weight, *(x[image] for x in others)
        weight_part, *image_grads = differentiate(partial(_convolve, settings), inputs, grad_output[image])
        weight_grad += weight_part
        for result, gradient in zip(other_grads, image_grads):
            result[image] = gradient
    return gradients


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor, **sizes: int
) -> None:
    """Write a deformable convolution (DCN v1) into `output`. `columns`, `ones` and `im2col_step` of mmcv are unused."""
    for image in _slice_images(input):
        output[image] = _convolve(_read_settings(sizes, *VERSION_1), weight, input[image], offset[image])


def deform_conv_backward_input(*tensors: Tensor, **sizes: int) -> None:
    """Add the gradient in the map to `grad_input`, and write the gradient in the offsets into `grad_offset`."""
    input, offset, grad_output, grad_input, grad_offset, weight, _columns = tensors
    _, input_grad, offset_grad = _sum_gradients(_read_settings(sizes, *VERSION_1), grad_output, weight, input, offset)
    grad_input += input_grad
    grad_offset.copy_(offset_grad)


def deform_conv_backward_parameters(*tensors: Tensor, scale: float, **sizes: int) -> None:
    """Add the gradient in the weight, times `scale`, to `grad_weight`."""
    input, offset, grad_output, grad_weight, _columns, _ones = tensors
    weight = torch.zeros_like(grad_weight)  # mmcv passes no weight: the gradient does not depend on it
    grad_weight += scale * _sum_gradients(_read_settings(sizes, *VERSION_1), grad_output, weight, input, offset)[0]


def modulated_deform_conv_forward(*tensors: Tensor, with_bias: bool, **sizes: int) -> None:
    """Write a deformable convolution with weighted samples (DCN v2) into `output`."""
    input, weight, bias, _ones, offset, mask, output, _columns = tensors
    for image in _slice_images(input):
        output[image] = _convolve(_read_settings(sizes, *VERSION_2), weight, input[image], offset[image], mask[image])
    if with_bias:
        output += bias[:, None, None]


def modulated_deform_conv_backward(*tensors: Tensor, with_bias: bool, **sizes: int) -> None:
    """Add the gradients of input, weight and bias to the given tensors, and write the gradients of offset and mask."""
    input, weight, _bias, _ones, offset, mask, _columns, *results, grad_output = tensors
    grad_input, grad_weight, grad_bias, grad_offset, grad_mask = results
    weight_grad, input_grad, offset_grad, mask_grad = _sum_gradients(
        _read_settings(sizes, *VERSION_2), grad_output, weight, input, offset, mask
    )
    grad_weight += weight_grad
    grad_input += input_grad
    grad_offset.copy_(offset_grad)
    grad_mask.copy_(mask_grad)
    if with_bias:
        grad_bias += grad_output.sum((0, 2, 3))


def _slice_images(x: Tensor) -> list[slice]:
    """Return a slice per image: the columns of an image take 9 times the memory of the map."""
    return [slice(index, index + 1) for index in range(len(x))]


def ms_deform_attn_forward(*tensors: Tensor, im2col_step: int) -> Tensor:
    """Return the attention of Deformable DETR, by mmcv's own function for CPUs, with sums in float32."""
    value, shapes, _starts, locations, weights = tensors
    return _attend(shapes, value, locations, weights)


def ms_deform_attn_backward(*tensors: Tensor, im2col_step: int) -> None:
    """Add the gradients of values, locations and weights to the given tensors."""
    value, shapes, _starts, locations, weights, grad_output, *results = tensors
    gradients = differentiate(partial(_attend, shapes), (value, locations, weights), grad_output)
    for result, gradient in zip(results, gradients):
        result += gradient


def _attend(shapes: Tensor, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch

    return multi_scale_deformable_attn_pytorch(widen(value), shapes, widen(locations), widen(weights)).to(value.dtype)
