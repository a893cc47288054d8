"""RoIAlign of rotated regions, and the feature alignment of rotated detectors.

roi.py has the letters.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .bags import (
    MAX_ENTRIES,
    Bags,
    as_rows,
    clamped_corners,
    cross,
    even_bags,
    number_entries,
    parts,
    spread_bags,
    sum_bags,
    wide,
)
from .roi import Axis, refuse_negative


def roi_align_rotated_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> None:
    """Pool (R, 6) regions: image, centre, width, height, and angle in radians."""
    map_MC = as_rows(input)
    bins = (pooled_height, pooled_width)
    for r, bags in _rotated_bags(rois, bins, spatial_scale, sampling_ratio, aligned, clockwise, input.shape):
        output[r] = sum_bags(map_MC, bags).view(-1, *bins, input.shape[1]).permute(0, 3, 1, 2).to(output)


def roi_align_rotated_backward(
    grad_output: Tensor,
    rois: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> None:
    """Add the gradient of `roi_align_rotated_forward` in the maps to `grad_input`."""
    num_images, channels, height, width = grad_input.shape
    bins = (pooled_height, pooled_width)
    for r, bags in _rotated_bags(rois, bins, spatial_scale, sampling_ratio, aligned, clockwise, grad_input.shape):
        grad_PC = wide(grad_output[r]).permute(0, 2, 3, 1).reshape(-1, channels)
        grad_MC = spread_bags(grad_PC, bags, num_images * height * width)
        grad_input += grad_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2)


def _rotated_bags(
    rois: Tensor,
    bins: tuple[int, int],
    scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
    shape: torch.Size,
) -> Iterator[tuple[slice, Bags]]:
    """Yield bags as `_upright_bags`. A rotated grid is not separable, and every sample has four entries."""
    if not len(rois):
        return
    height, width = shape[2:]
    x_R, y_R, width_R, height_R = (wide(rois[:, 1:5]) * scale).unbind(1)
    angle_R = -wide(rois[:, 5]) if clockwise else wide(rois[:, 5])
    if aligned:
        refuse_negative([height_R, width_R], rois)
        x_R, y_R = x_R - 0.5, y_R - 0.5
    else:
        width_R, height_R = width_R.clamp(min=1), height_R.clamp(min=1)
    down = Axis(-height_R / 2, height_R, bins[0], sampling_ratio)
    across = Axis(-width_R / 2, width_R, bins[1], sampling_ratio)
    cos_R, sin_R, image_R = angle_R.cos(), angle_R.sin(), rois[:, 0].long()

    samples_R = down.samples_R * across.samples_R
    num_bins = bins[0] * bins[1]
    for part in parts(samples_R * (4 * num_bins), MAX_ENTRIES):
        count_P = samples_R[part].repeat_interleave(num_bins)
        total = int(count_P.sum())
        bag_S, sample_S = number_entries(count_P, total)
        region_S = bag_S // num_bins
        bin_S = bag_S - region_S * num_bins
        region_S = region_S + part.start
        samples_x_S = across.samples_R[region_S]
        up_S = down.at(region_S, bin_S // bins[1], sample_S // samples_x_S)
        right_S = across.at(region_S, bin_S % bins[1], sample_S % samples_x_S)
        y_S = up_S * cos_R[region_S] - right_S * sin_R[region_S] + y_R[region_S]
        x_S = up_S * sin_R[region_S] + right_S * cos_R[region_S] + x_R[region_S]
        rows, weights = cross(clamped_corners(y_S, height), clamped_corners(x_S, width), width)
        rows = rows + (image_R[region_S] * (height * width))[:, None]
        weights = weights / samples_R[region_S][:, None]
        yield part, Bags(rows.flatten(), weights.flatten(), 4 * (count_P.cumsum(0) - count_P))


def rotated_feature_align_forward(
    features: Tensor, best_bboxes: Tensor, output: Tensor, spatial_scale: float, points: int
) -> None:
    """Sum a position with samples at the centre of its box, and with 5 points also at the corners (R3Det's feature
    refinement). Maps are (B, C, H, W), boxes (B, H, W, 5)."""
    pooled_MC = sum_bags(as_rows(features), _refining_bags(best_bboxes, features.shape, spatial_scale, points))
    num_images, channels, height, width = features.shape
    output.copy_(pooled_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2))


def rotated_feature_align_backward(
    top_grad: Tensor, best_bboxes: Tensor, bottom_grad: Tensor, spatial_scale: float, points: int
) -> None:
    """Add the gradient of `rotated_feature_align_forward` in the maps to `bottom_grad`."""
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
