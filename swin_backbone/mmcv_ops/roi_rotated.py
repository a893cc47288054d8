"""RoIAlign of rotated regions.

Letters as in roi.py.
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
    """RoIAlign of (R, 6) regions: image, centre, width, height, and angle in radians."""
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
    """The gradient of `roi_align_rotated_forward` in the maps, added to `grad_input`."""
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
    """As `_upright_bags`; a rotated grid is not separable, so each sample has four entries of its own."""
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
