"""Small pictures for the page, and what the page draws over them."""

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Optional

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from ..data.media import convert_to_bgr, read_picture
from ..data.rasters import read_tiff
from .detection import Array

WRONG = (0, 94, 213)  # BGR
SIDE = 320  # pixels of the longer side
QUALITY = 60  # of WebP
MAX_DISTANCE = 2  # pixels between an outline and the edge of its mask
Read = Callable[[Path], Array]  # returns the pixels of a file: `read_picture`, or a config's loader


class Shape(NamedTuple):
    """An object to draw: box (x, y, width, height), text, colour, and the outline as an SVG path, in pixels."""

    box: Sequence[float]
    text: str
    is_right: bool
    outline: str = ''


def trace_outline(mask: Any) -> str:
    """Return the outline of an RLE as an SVG path."""
    contours, _ = cv2.findContours(coco_mask.decode(mask), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    lines = [cv2.approxPolyDP(contour, MAX_DISTANCE, True)[:, 0].tolist() for contour in contours]
    return ' '.join('M' + ' '.join(f'{x} {y}' for x, y in line) + 'Z' for line in lines)


def read_shown(file: str, read: Read = read_picture) -> Optional[Array]:
    """Return a picture as (H, W, 3) uint8 BGR; None if it cannot be read. Of many bands, the first three or one."""
    with suppress(OSError, ValueError):
        return convert_to_bgr(read(Path(file)))
    with suppress(OSError, ValueError):
        return convert_to_bgr(read_tiff(Path(file).read_bytes(), file, 'unchanged'))
    return None


def draw(
    file: str, read: Read = read_picture, panels: Sequence[Sequence[Shape]] = ((),), is_cropped: bool = False
) -> dict[str, Any]:
    """Return address, part (x, y, width, height) and panels of a picture; {} if it cannot be read.

    Args:
        panels: the picture is shown once for each panel, under the objects of the panel.
        is_cropped: show only the surroundings of the objects.
    """
    pixels = read_shown(file, read)
    if pixels is None:
        return {}
    begin, end = np.zeros(2, int), np.array(pixels.shape[1::-1])  # x, y
    if is_cropped:
        boxes = np.array([shape.box for panel in panels for shape in panel], float)
        low, high = boxes[:, :2].min(0), (boxes[:, :2] + boxes[:, 2:]).max(0)
        margin = 0.4 * (high - low).max() + 8
        low, high = (np.clip(corner, 0, end).astype(int) for corner in (low - margin, high + margin))
        begin, end = (low, high) if (low < high).all() else (begin, end)  # a label may be outside
    address = encode(pixels[begin[1] : end[1], begin[0] : end[0]])
    return dict(address=address, part=[*begin.tolist(), *(end - begin).tolist()], panels=panels)


def draw_labels(
    file: str, label_HW: Array, predicted_HW: Array, palette: Sequence[Any], ignored: int, read: Read = read_picture
) -> dict[str, Any]:
    """Return the address of labels, prediction and wrong pixels of a segmentor, side by side."""
    pixels = read_shown(file, read)
    pixels = np.full((1, 1, 3), 128, np.uint8) if pixels is None else pixels  # grey
    small = cv2.resize(pixels, label_HW.shape[::-1], interpolation=cv2.INTER_AREA)
    colours = np.array(palette, float)[:, ::-1]  # BGR
    panels = []
    for labels in (label_HW, predicted_HW):
        is_class = (labels >= 0) & (labels < len(colours))
        panels.append(np.where(is_class[..., None], 0.45 * small + 0.55 * colours[is_class * labels], small))
    is_wrong = (label_HW != predicted_HW) & (label_HW != ignored)
    panels.append(np.where(is_wrong[..., None], np.array(WRONG), small.mean(2, keepdims=True) / 2 + 100))
    return dict(address=encode(np.concatenate(panels, axis=1).astype(np.uint8), 3 * SIDE))


def encode(pixels: Array, side: int = SIDE) -> str:
    """Return a picture whose longer side has at most `side` pixels as an address in HTML."""
    data = cv2.imencode('.webp', reduce(pixels, side, cv2.INTER_AREA), [cv2.IMWRITE_WEBP_QUALITY, QUALITY])[1].tobytes()
    return 'data:image/webp;base64,' + base64.b64encode(data).decode()


def reduce(pixels: Array, side: int, interpolation: int) -> Array:
    """Return a picture whose longer side has at most `side` pixels."""
    scale = min(1, side / max(pixels.shape[:2]))
    return cv2.resize(
        pixels, [max(1, round(length * scale)) for length in pixels.shape[1::-1]], interpolation=interpolation
    )
