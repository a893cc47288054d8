"""RoIAlign of rotated regions, and the feature alignment of rotated detectors.

roi.py has the letters.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .bags import Bags, find_corner_rows, make_even_bags, pool_bags, unpool_bags, widen
from .overlaps import find_rotated_corners
from .roi import SampledAxis, make_mean_bags


def roi_align_rotated_forward(input: Tensor, rois: Tensor, output: Tensor, **settings: Any) -> None:
    """Pool (R, 6) regions: image, centre, width, height, and angle in radians.

    Args:
        settings: settings of `_make_rotated_bags`.
    """
    pool_bags(input, _make_rotated_bags(rois, input.shape, **settings), output)


def roi_align_rotated_backward(grad_output: Tensor, rois: Tensor, grad_input: Tensor, **settings: Any) -> None:
    """Add the gradient of `roi_align_rotated_forward` in the maps to `grad_input`."""
    unpool_bags(grad_output, _make_rotated_bags(rois, grad_input.shape, **settings), grad_input)


def _make_rotated_bags(
    rois: Tensor,
    shape: torch.Size,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> Iterator[tuple[slice, Bags]]:
    x_R, y_R, width_R, height_R = (widen(rois[:, 1:5]) * spatial_scale).unbind(1)
    angle_R = -widen(rois[:, 5]) if clockwise else widen(rois[:, 5])
    if aligned:
        x_R, y_R = x_R - 0.5, y_R - 0.5
    else:
        width_R, height_R = width_R.clamp(min=1), height_R.clamp(min=1)
    down = SampledAxis(-height_R / 2, height_R, pooled_height, sampling_ratio)
    across = SampledAxis(-width_R / 2, width_R, pooled_width, sampling_ratio)
    cos_R, sin_R = angle_R.cos(), angle_R.sin()

    def turn(region_S: Tensor, down_S: Tensor, across_S: Tensor) -> tuple[Tensor, Tensor]:
        y_S = down_S * cos_R[region_S] - across_S * sin_R[region_S] + y_R[region_S]
        return y_S, down_S * sin_R[region_S] + across_S * cos_R[region_S] + x_R[region_S]

    return make_mean_bags(rois[:, 0].long(), down, across, shape, turn)


def rotated_feature_align_forward(
    features: Tensor, best_bboxes: Tensor, output: Tensor, spatial_scale: float, points: int
) -> None:
    """Sum a position with samples at the centre of its box, and with 5 points also at the corners (R3Det's feature
    refinement). Maps are (B, C, H, W), boxes (B, H, W, 5)."""
    pool_bags(features, _make_refining_bags(best_bboxes, features.shape, spatial_scale, points), output)


def rotated_feature_align_backward(
    top_grad: Tensor, best_bboxes: Tensor, bottom_grad: Tensor, spatial_scale: float, points: int
) -> None:
    """Add the gradient of `rotated_feature_align_forward` in the maps to `bottom_grad`."""
    unpool_bags(top_grad, _make_refining_bags(best_bboxes, bottom_grad.shape, spatial_scale, points), bottom_grad)


def _make_refining_bags(boxes: Tensor, shape: torch.Size, scale: float, points: int) -> list[tuple[slice, Bags]]:
    num_images, _, height, width = shape
    boxes_M5 = widen(boxes).reshape(-1, 5)[:, [1, 0, 2, 3, 4]]  # mmcv reads y first
    boxes_M5 = boxes_M5 * boxes_M5.new_tensor([scale, scale, scale, scale, 1])
    x_MS, y_MS = torch.cat([boxes_M5[:, None, :2], find_rotated_corners(boxes_M5)], 1)[:, :points].unbind(2)
    itself_M = torch.arange(num_images * height * width, device=boxes.device)
    rows, weights = find_corner_rows(itself_M[:, None] // (height * width), y_MS, x_MS, shape)
    rows = torch.cat([itself_M[:, None], rows.flatten(1)], 1)
    weights = torch.cat([weights.new_ones(len(rows), 1), weights.flatten(1)], 1)
    return [(slice(None), make_even_bags(rows, weights))]
