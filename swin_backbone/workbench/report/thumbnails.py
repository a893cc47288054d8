"""Small pictures for the page: right objects in blue, wrong ones in orange."""

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from .detection import Array

RIGHT, WRONG = (178, 114, 0), (0, 94, 213)  # BGR, of Okabe and Ito
SIDE = 320  # pixels of a panel
QUALITY = 60  # of WebP
Read = Callable[[str], Array]  # returns the pixels of a path, (H, W, 3) uint8 BGR


class Shape(NamedTuple):
    """An object to draw: box (x, y, width, height), text, colour, and a mask, of which an RLE is drawn."""

    box: Sequence[float]
    text: str
    is_right: bool
    mask: Optional[Any] = None


class Drawing(NamedTuple):
    """A picture with several panels side by side, each with its objects, or cropped to these."""

    file: str
    panels: Sequence[Sequence[Shape]]
    is_cropped: bool = False


def draw(drawing: Drawing, read: Read) -> str:
    """Return a drawing for HTML; '' if the picture cannot be read."""
    try:
        pixels = read(drawing.file)
    except (OSError, ValueError):
        return ''
    return encode([_panel(pixels, shapes, drawing.is_cropped) for shapes in drawing.panels])


def _panel(pixels: Array, shapes: Sequence[Shape], is_cropped: bool) -> Array:
    size = np.array(pixels.shape[1::-1])
    low, high = np.zeros(2, int), size
    if is_cropped:
        boxes = np.array([shape.box for shape in shapes], float)
        low, high = boxes[:, :2].min(0), (boxes[:, :2] + boxes[:, 2:]).max(0)
        margin = 0.4 * (high - low).max() + 8
        low, high = (np.clip(edge, 0, size).astype(int) for edge in (low - margin, high + margin))
        if (high <= low).any():  # outside the picture
            low, high = np.zeros(2, int), size
    part = np.s_[low[1] : high[1], low[0] : high[0]]
    scale = SIDE / (high - low).max()
    across, down = (max(1, round(side * scale)) for side in high - low)
    panel = cv2.resize(pixels[part], (across, down), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    for shape in shapes:
        colour = RIGHT if shape.is_right else WRONG
        if isinstance(shape.mask, dict) and [*shape.mask['size']] == [*pixels.shape[:2]]:
            inside = cv2.resize(coco_mask.decode(shape.mask)[part], (across, down), interpolation=cv2.INTER_NEAREST)
            panel[inside > 0] = 0.6 * panel[inside > 0] + 0.4 * np.array(colour)
        begin = ((np.array(shape.box[:2]) - low) * scale).astype(int)
        end = begin + (np.array(shape.box[2:]) * scale).astype(int)
        cv2.rectangle(panel, begin.tolist(), end.tolist(), colour, 1, cv2.LINE_AA)
        place = np.clip(begin + (2, 10), (2, 10), (max(2, across - 30), down)).tolist()
        for thickness, ink in ((3, (0, 0, 0)), (1, (255, 255, 255))):
            cv2.putText(panel, shape.text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.36, ink, thickness, cv2.LINE_AA)
    return panel


def draw_labels(pixels: Array, label_HW: Array, predicted_HW: Array, palette: Sequence[Any], ignored: int) -> str:
    """Return labels, prediction and wrong pixels of a segmentor for HTML, side by side."""
    small = cv2.resize(pixels, label_HW.shape[::-1], interpolation=cv2.INTER_AREA)
    colours = np.array(palette, float)[:, ::-1]  # BGR
    panels = []
    for labels in (label_HW, predicted_HW):
        is_class = (labels >= 0) & (labels < len(colours))
        panels.append(
            np.where(is_class[..., None], 0.45 * small + 0.55 * colours[np.where(is_class, labels, 0)], small)
        )
    is_wrong = (label_HW != predicted_HW) & (label_HW != ignored)
    panels.append(np.where(is_wrong[..., None], np.array(WRONG), small.mean(2, keepdims=True) / 2 + 100))
    return encode(panels)


def encode(panels: Sequence[Array]) -> str:
    """Return panels of one height, side by side, as an address in HTML."""
    gap = np.full((len(panels[0]), 4, 3), 128)
    pixels = np.concatenate([part for panel in panels for part in (gap, panel)][1:], axis=1).astype(np.uint8)
    data = cv2.imencode('.webp', pixels, [cv2.IMWRITE_WEBP_QUALITY, QUALITY])[1].tobytes()
    return 'data:image/webp;base64,' + base64.b64encode(data).decode()
