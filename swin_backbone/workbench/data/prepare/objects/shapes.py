"""Objects by outlines, boxes and bitmaps, in pixels of their picture."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Union

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pycocotools import mask as coco_mask

ELLIPSE = np.linspace(0, 2 * np.pi, 64, endpoint=False)  # angles of the points of its outline


class Box(NamedTuple):
    """An object with its box.

    Args:
        class_name: name of its class.
        bbox: x, y, width and height, in pixels.
        mask: outlines, or an RLE.
        is_rectangle: a box is drawn, and no outline.
        is_ignored: neither trained nor scored.
    """

    class_name: str
    bbox: tuple[float, float, float, float]
    mask: Union[list[list[float]], dict[str, Any]]
    is_rectangle: bool = False
    is_ignored: bool = False


def make_box(class_name: str, points: ArrayLike, size: tuple[int, int], is_rectangle: bool = False) -> Box:
    """Return the object inside an outline, points (N, 2) in pixels, which is cut at the picture's edges.

    Raises:
        ValueError: if they are not three finite points or more.
    """
    points_N2: NDArray[Any] = np.asarray(points, float)
    if points_N2.ndim != 2 or points_N2.shape[1] != 2 or len(points_N2) < 3 or not np.isfinite(points_N2).all():
        raise ValueError(f'points must be finite, (N, 2), got {points_N2.shape}')
    outline, bounds = cut_outline(points_N2, size)
    low, high = (bounds.min(0), bounds.max(0)) if len(bounds) else np.zeros((2, 2))
    x, y, w, h = np.concatenate([low, high - low]).round(3).tolist()
    mask = [outline.ravel().round(3).tolist()] if len(outline) > 2 else []
    return Box(class_name, (x, y, w, h), mask, is_rectangle)


def cut_outline(points: NDArray[Any], size: tuple[int, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cut an outline at the four edges of a picture, one after the other (Sutherland and Hodgman, 1974).

    Unlike shapely's, the outline may cross or touch itself: pixels inside keep their state, by the even-odd rule. Parts
    of the outline that are joined outside of the picture are joined along its edges.

    Args:
        points: (N, 2), finite.
        size: height and width of the picture.

    Returns:
        The outline (M, 2), and its points that bound the object: not a corner of the picture that only joins
        two parts.
    """
    height, width = size
    outline = points
    for axis, edge, inwards in ((0, 0, 1), (1, 0, 1), (0, width, -1), (1, height, -1)):
        depth = inwards * (outline[:, axis] - edge)
        if (depth >= 0).all():
            continue
        ends, end_depth = np.roll(outline, -1, 0), np.roll(depth, -1)
        crosses = np.sign(depth) * np.sign(end_depth) < 0
        share = np.divide(depth, depth - end_depth, out=np.zeros_like(depth), where=crosses)
        crossings = outline + share[:, None] * (ends - outline)
        crossings[:, axis] = edge
        kept = np.stack([depth >= 0, crosses], 1).ravel()
        outline = np.stack([outline, crossings], 1).reshape(-1, 2)[kept]
    if outline is points:
        return points, points
    closed = points.astype(np.float32)
    outside = [
        corner for corner in find_corners(0, 0, width, height) if cv2.pointPolygonTest(closed, corner, False) < 0
    ]
    on_join = [(outline == corner).all(1) for corner in outside]
    return outline, outline[~np.any(on_join, 0)] if on_join else outline


def find_corners(left: float, top: float, right: float, bottom: float, degrees: float = 0) -> NDArray[Any]:
    """Return the corners of a box, (4, 2), turned clockwise around its centre."""
    corners: NDArray[Any] = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], float)
    centre = corners.mean(0)
    return rotate(corners - centre, degrees) + centre if degrees else corners


def make_bitmap_box(class_name: str, bitmap: NDArray[Any], left: int, top: int, size: tuple[int, int]) -> Box:
    """Return an object by a bitmap (H, W) whose first pixel is at `left` and `top` of the picture.

    Raises:
        ValueError: if the bitmap reaches out of the picture.
    """
    mask = np.zeros(size, np.uint8, 'F')
    mask[top : top + bitmap.shape[0], left : left + bitmap.shape[1]] = bitmap != 0
    rle = coco_mask.encode(mask)
    x, y, w, h = coco_mask.toBbox(rle).tolist()
    return Box(class_name, (x, y, w, h), _to_json(rle))


def make_ellipse(centre: Sequence[float], radii: Sequence[float], degrees: float = 0) -> NDArray[Any]:
    """Return the points of an outline, (N, 2)."""
    outline: NDArray[Any] = rotate(np.stack([np.cos(ELLIPSE), np.sin(ELLIPSE)], 1) * radii, degrees) + centre
    return outline


def parse_angle(attribute: Any) -> float:
    """Return an attribute called rotation in degrees. One without a finite number is the user's own, and becomes 0."""
    try:
        degrees = float(attribute)
    except (TypeError, ValueError):
        return 0
    return degrees if math.isfinite(degrees) else 0


def rotate(points: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Return points (N, 2), turned clockwise around (0, 0) of a picture."""
    turn = np.exp(1j * np.deg2rad(degrees))
    turned: NDArray[Any] = points @ np.array([[turn.real, turn.imag], [-turn.imag, turn.real]])
    return turned


def join_groups(grouped_boxes: Iterable[tuple[Hashable, Box]]) -> list[Box]:
    """Join the boxes of a class with an equal group into one object. A box of group None is an object."""
    groups: dict[Hashable, list[Box]] = {}
    for index, (group, box) in enumerate(grouped_boxes):
        groups.setdefault((index,) if group is None else (box.class_name, group), []).append(box)
    return [boxes[0] if len(boxes) == 1 else _join(boxes) for boxes in groups.values()]


def _join(boxes: Sequence[Box]) -> Box:
    boxes = [box for box in boxes if 0 not in box.bbox[2:]] or boxes[:1]
    bboxes = np.array([box.bbox for box in boxes])
    low, high = bboxes[:, :2].min(0), (bboxes[:, :2] + bboxes[:, 2:]).max(0)
    x, y, w, h = np.concatenate([low, high - low]).round(3).tolist()
    rles = [box.mask for box in boxes if isinstance(box.mask, dict)]
    mask: Union[list[list[float]], dict[str, Any]] = [
        outline for box in boxes if isinstance(box.mask, list) for outline in box.mask
    ]
    if rles:
        size = rles[0]['size']
        mask = _to_json(coco_mask.merge([*rles, *(coco_mask.frPyObjects(mask, *size) if mask else ())]))
    is_rectangle = all(box.is_rectangle for box in boxes)
    is_ignored = any(box.is_ignored for box in boxes)
    return Box(boxes[0].class_name, (x, y, w, h), mask, is_rectangle, is_ignored)


def _to_json(rle: dict[str, Any]) -> dict[str, Any]:
    return dict(size=list(rle['size']), counts=rle['counts'].decode())


def compute_area(box: Box, size: tuple[int, int]) -> float:
    """Return the area of an object: its pixels, or what its outline encloses for a box and for less than a pixel."""
    if isinstance(box.mask, dict):
        return int(coco_mask.area(box.mask))
    if not box.is_rectangle or len(box.mask) > 1:
        pixels = int(coco_mask.area(coco_mask.merge(coco_mask.frPyObjects(box.mask, *size))))
        if pixels:
            return pixels
    outlines = [np.reshape(outline, (-1, 2)) for outline in box.mask]
    products = sum(abs(np.linalg.det(np.stack([outline, np.roll(outline, -1, 0)], 1)).sum()) for outline in outlines)
    return round(float(products) / 2, 3)
