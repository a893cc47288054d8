"""Overlaps of rotated boxes and other convex quadrilaterals.

Letters: N quadrilaterals, P pairs. A quadrilateral is four corners, (4, 2).
"""

import torch
from torch import Tensor

from .bags import widen

# Pairs per call, with 24 points for each.
MAX_PAIRS = 2**16


def find_rotated_corners(boxes: Tensor) -> Tensor:
    """Return the corners (N, 4, 2) of (N, 5+) boxes: centre, width, height, angle in radians from x towards y."""
    centre, size, angle = boxes[:, None, :2], boxes[:, None, 2:4], boxes[:, 4, None]
    x, y = (size * boxes.new_tensor([[-0.5, 0.5], [-0.5, -0.5], [0.5, -0.5], [0.5, 0.5]])).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return centre + torch.stack([x * cos - y * sin, x * sin + y * cos], -1)


def split_corners(boxes: Tensor) -> Tensor:
    """Return the corners (N, 4, 2) of (N, 8+) quadrilaterals x1, y1, ..., y4."""
    return boxes[:, :8].unflatten(1, (4, 2))


def box_iou_rotated(bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool) -> None:
    """Write overlaps of rotated boxes (N, 5) into `ious`, flat: of all pairs, or with `aligned` row by row."""
    _write_overlaps(
        find_rotated_corners(widen(bboxes1)), find_rotated_corners(widen(bboxes2)), ious, mode_flag, aligned
    )


def box_iou_quadri(bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool) -> None:
    """Write `box_iou_rotated` of convex quadrilaterals (N, 8)."""
    _write_overlaps(split_corners(widen(bboxes1)), split_corners(widen(bboxes2)), ious, mode_flag, aligned)


def _write_overlaps(first: Tensor, second: Tensor, ious: Tensor, mode_flag: int, aligned: bool) -> None:
    ious.copy_(compute_overlaps(first if aligned else first[:, None], second, over_first=mode_flag == 1).flatten())


def compute_overlaps(first: Tensor, second: Tensor, over_first: bool = False) -> Tensor:
    """Return intersection over union of quadrilaterals (..., 4, 2), whose leading axes broadcast.

    Args:
        over_first: divide by the area of the first quadrilateral, not of the union.
    """
    area_1, area_2 = _areas(first), _areas(second)
    low = torch.maximum(first.amin(-2), second.amin(-2))
    high = torch.minimum(first.amax(-2), second.amax(-2))
    # Most boxes are far apart: only boxes with overlapping upright bounds are intersected.
    has_area = (area_1 >= 1e-14) & (area_2 >= 1e-14)
    pairs = (has_area & (low <= high).all(-1)).nonzero()
    shared = torch.zeros(has_area.shape, dtype=first.dtype, device=first.device)
    first, second = torch.broadcast_tensors(first, second)
    for begin in range(0, len(pairs), MAX_PAIRS):
        pair_index = tuple(pairs[begin : begin + MAX_PAIRS].unbind(1))
        shared[pair_index] = _shared_areas(first[pair_index], second[pair_index])
    return torch.where(has_area, shared / (area_1 if over_first else area_1 + area_2 - shared), 0)


def _areas(shapes: Tensor) -> Tensor:
    diagonal_1, diagonal_2 = shapes[..., 2, :] - shapes[..., 0, :], shapes[..., 3, :] - shapes[..., 1, :]
    return (_cross(diagonal_1, diagonal_2) / 2).abs()


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _shared_areas(first: Tensor, second: Tensor) -> Tensor:
    """Return the areas (P,) of the intersections of pairs (P, 4, 2). Corners of an intersection are crossings of sides,
    and corners of one shape inside the other."""
    middle = (first.mean(1, keepdim=True) + second.mean(1, keepdim=True)) / 2
    first, second = first - middle, second - middle
    sides_1, sides_2 = first.roll(-1, 1) - first, second.roll(-1, 1) - second

    across = second[:, None] - first[:, :, None]
    slope = _cross(sides_1[:, :, None], sides_2[:, None])
    at_1 = _cross(across, sides_2[:, None].expand_as(across)) / slope
    at_2 = _cross(across, sides_1[:, :, None].expand_as(across)) / slope
    is_crossing = (slope.abs() > 1e-14) & (at_1 >= 0) & (at_1 <= 1) & (at_2 >= 0) & (at_2 <= 1)
    crossings = first[:, :, None] + sides_1[:, :, None] * at_1.masked_fill(~is_crossing, 0)[..., None]

    points = torch.cat([crossings.flatten(1, 2), first, second], 1)
    valid = torch.cat([is_crossing.flatten(1), _inside(first, second, sides_2), _inside(second, first, sides_1)], 1)
    return _hull_areas(points, valid)


def _inside(points: Tensor, shapes: Tensor, sides: Tensor) -> Tensor:
    """Return whether each of (P, 4, 2) points lies inside or on the convex shape of its pair, of either orientation."""
    turns = _cross(sides[:, None], points[:, :, None] - shapes[:, None])
    return (turns >= 0).all(-1) | (turns <= 0).all(-1)


def _hull_areas(points: Tensor, valid: Tensor) -> Tensor:
    """Return the areas of convex polygons. The valid points are the corners, in any order, with repetitions."""
    count = valid.sum(1).clamp(min=1)
    centre = (points * valid[..., None]).sum(1) / count[:, None]
    # Invalid points move to the first valid point: a repeated corner adds no area.
    somewhere = points.gather(1, valid.int().argmax(1).view(-1, 1, 1).expand(-1, 1, 2))
    spokes = torch.where(valid[..., None], points, somewhere) - centre[:, None]
    order = torch.atan2(spokes[..., 1], spokes[..., 0]).argsort(1)
    spokes = spokes.gather(1, order[..., None].expand_as(spokes))
    area = _cross(spokes, spokes.roll(-1, 1)).sum(1).abs() / 2
    return torch.where(valid.sum(1) > 2, area, 0)
