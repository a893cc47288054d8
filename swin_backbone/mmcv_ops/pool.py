"""RoIPool, BorderAlign, and the feature alignment of rotated detectors.

Letters as in roi.py.
"""

import torch
from torch import Tensor

from .bags import (
    MAX_VALUES,
    Bags,
    as_rows,
    channel_numbers,
    clamped_corners,
    cross,
    even_bags,
    parts,
    sample,
    spread_bags,
    spread_to_pixels,
    sum_bags,
    wide,
)


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """RoIPool of mmcv: the maximum over all pixels of a bin, whose sides are rounded outwards; `argmax` (int32) is the
    first pixel that has it, or -1 for a bin without pixels, which is 0."""
    if not len(rois):
        return
    channels, height, width = input.shape[1:]
    map_MC, image_R = as_rows(input), rois[:, 0].long()
    x1_R, y1_R, x2_R, y2_R = (wide(rois[:, 1:]) + wide(rois.new_tensor([0, 0, 1, 1]))).mul(spatial_scale).unbind(1)
    real_R = (x2_R > x1_R) & (y2_R > y1_R)
    first_y, end_y = _pixels(y1_R, y2_R, pooled_height, height)
    first_x, end_x = _pixels(x1_R, x2_R, pooled_width, width)
    high_R = ((end_y - first_y) * real_R[:, None]).amax(1)
    wide_R = ((end_x - first_x) * real_R[:, None]).amax(1)
    cost_R = high_R * wide_R * (pooled_height * pooled_width * channels)
    order_R = cost_R.argsort()
    for part in parts(cost_R[order_R], MAX_VALUES):
        r = order_R[part]
        high, broad = int(high_R[r].max()), int(wide_R[r].max())
        if not high * broad:
            output[r], argmax[r] = 0, -1
            continue
        y = first_y[r, :, None] + torch.arange(high, device=r.device)
        x = first_x[r, :, None] + torch.arange(broad, device=r.device)
        valid = ((y < end_y[r, :, None]) & real_R[r, None, None])[:, :, None, :, None] & (x < end_x[r, :, None])[
            :, None, :, None, :
        ]
        pixel = y.clamp(max=height - 1)[:, :, None, :, None] * width + x.clamp(max=width - 1)[:, None, :, None, :]
        pixel, valid = pixel.flatten(-2), valid.flatten(-2)
        values = map_MC[(pixel + image_R[r].view(-1, 1, 1, 1) * (height * width))]
        best, where = values.masked_fill(~valid[..., None], -torch.inf).max(3)
        none = best == -torch.inf
        output[r] = best.masked_fill(none, 0).permute(0, 3, 1, 2).to(output)
        argmax[r] = pixel.gather(3, where).masked_fill(none, -1).permute(0, 3, 1, 2).to(argmax)


def _pixels(start_R: Tensor, end_R: Tensor, num_bins: int, size: int) -> tuple[Tensor, Tensor]:
    """First pixel of each bin and the one after its last, (R, I)."""
    step_R = ((end_R - start_R) / num_bins)[:, None]
    bins_I = torch.arange(num_bins + 1, device=start_R.device)
    edges = bins_I * step_R + start_R[:, None]
    first = edges[:, :-1].floor().clamp(0, size).long()
    return first, torch.maximum(edges[:, 1:].ceil().clamp(0, size).long(), first)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """The gradient of `roi_pool_forward` in the maps, added to `grad_input`."""
    channels, height, width = grad_input.shape[1:]
    plane = rois[:, 0].long().view(-1, 1, 1, 1) * channels + channel_numbers(grad_input)
    pixel = plane * (height * width) + argmax.clamp(min=0)
    spread = torch.zeros(grad_input.numel(), dtype=wide(grad_output).dtype, device=grad_input.device)
    spread.index_add_(0, pixel.flatten(), (wide(grad_output) * (argmax >= 0)).flatten())
    grad_input += spread.view(grad_input.shape)


def border_align_forward(input: Tensor, boxes: Tensor, output: Tensor, argmax_idx: Tensor, pool_size: int) -> None:
    """BorderDet's pooling: the maximum of pool_size + 1 samples along each side of each box.

    Args:
        input: (B, 4C, H, W), channels of the top, left, bottom and right side.
        boxes: (B, N, 4) in pixels of the map.
        output: (B, C, N, 4).
        argmax_idx: int32, as output: which sample, counted from the box's first corner, or from its last for bottom and
            right.
    """
    num_images, channels, height, width = input.shape
    num_boxes = boxes.shape[1]
    map_MC = wide(input).view(num_images, 4, channels // 4, height * width).transpose(2, 3).reshape(-1, channels // 4)
    y, x = _border_samples(boxes, torch.arange(pool_size + 1, device=boxes.device).view(-1, 1), pool_size)
    plane = torch.arange(num_images * 4, device=boxes.device).view(num_images, 1, 1, 4)
    values = sample(map_MC, plane.expand(y.shape), y, x, height, width)
    best, where = values.view(num_images, num_boxes, pool_size + 1, 4, -1).max(2)
    output.copy_(best.permute(0, 3, 1, 2))
    argmax_idx.copy_(where.permute(0, 3, 1, 2))


def border_align_backward(
    grad_output: Tensor, boxes: Tensor, argmax_idx: Tensor, grad_input: Tensor, pool_size: int
) -> None:
    """The gradient of `border_align_forward` in the maps, added to `grad_input`."""
    channels = grad_input.shape[1] // 4
    # (B, C, N, 4): the samples of the maxima, which lie elsewhere in each channel.
    which = argmax_idx.permute(0, 2, 1, 3)
    y, x = (at.transpose(1, 2) for at in _border_samples(boxes, which, pool_size))
    image = torch.arange(len(boxes), device=boxes.device).view(-1, 1, 1, 1)
    side = torch.arange(4, device=boxes.device) * channels
    channel = side + torch.arange(channels, device=boxes.device).view(1, -1, 1, 1)
    spread_to_pixels(grad_input, wide(grad_output), image, channel, y, x)


def _border_samples(boxes: Tensor, which: Tensor, pool_size: int) -> tuple[Tensor, Tensor]:
    """Where samples of the sides lie, (B, N, samples, 4). `which` broadcasts to that: 0 is a side's first, pool_size
    its last."""
    x1, y1, x2, y2 = wide(boxes)[:, :, None].unbind(-1)
    top, left, bottom, right = (which / pool_size).expand(*which.shape[:-1], 4).unbind(-1)
    box_width, box_height = x2 - x1, y2 - y1
    x = [x1 + top * box_width, x1 + 0 * left, x2 - bottom * box_width, x2 + 0 * right]
    y = [y1 + 0 * top, y1 + left * box_height, y2 + 0 * bottom, y2 - right * box_height]
    return torch.stack(y, -1), torch.stack(x, -1)


def rotated_feature_align_forward(
    features: Tensor, best_bboxes: Tensor, output: Tensor, spatial_scale: float, points: int
) -> None:
    """R3Det's feature refinement: each position and the samples at the centre (and, with 5 points, the corners) of its
    box, summed. (B, C, H, W) maps, (B, H, W, 5) boxes."""
    pooled_MC = sum_bags(as_rows(features), _refining_bags(best_bboxes, features.shape, spatial_scale, points))
    num_images, channels, height, width = features.shape
    output.copy_(pooled_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2))


def rotated_feature_align_backward(
    top_grad: Tensor, best_bboxes: Tensor, bottom_grad: Tensor, spatial_scale: float, points: int
) -> None:
    """The gradient of `rotated_feature_align_forward` in the maps, added to `bottom_grad`."""
    num_images, channels, height, width = bottom_grad.shape
    bags = _refining_bags(best_bboxes, bottom_grad.shape, spatial_scale, points)
    grad_MC = spread_bags(as_rows(top_grad), bags, num_images * height * width)
    bottom_grad += grad_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2)


def _refining_bags(boxes: Tensor, shape: torch.Size, scale: float, points: int) -> Bags:
    num_images, _, height, width = shape
    # mmcv reads the first number of a box as y and the second as x.
    y_M, x_M, width_M, height_M = (wide(boxes).reshape(-1, 5)[:, :4] * scale).unbind(1)
    y_MS, x_MS = y_M[:, None], x_M[:, None]
    if points > 1:
        cos_M, sin_M = wide(boxes).reshape(-1, 5)[:, 4].cos(), wide(boxes).reshape(-1, 5)[:, 4].sin()
        along = torch.tensor([0, 1, -1, -1, 1], device=boxes.device) / 2
        aside = torch.tensor([0, 1, 1, -1, -1], device=boxes.device) / 2
        x_MS = x_MS + along * (cos_M * width_M)[:, None] - aside * (sin_M * height_M)[:, None]
        y_MS = y_MS + along * (sin_M * width_M)[:, None] + aside * (cos_M * height_M)[:, None]
    rows, weights = cross(clamped_corners(y_MS, height), clamped_corners(x_MS, width), width)
    itself_M = torch.arange(num_images * height * width, device=boxes.device)
    rows = rows + (itself_M // (height * width) * (height * width))[:, None, None]
    rows = torch.cat([itself_M[:, None], rows.flatten(1)], 1)
    return even_bags(rows, torch.cat([weights.new_ones(len(rows), 1), weights.flatten(1)], 1))
