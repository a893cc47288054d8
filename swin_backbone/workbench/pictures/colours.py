"""Colours of classes, and labels with colours as a PNG."""

import colorsys
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GOLDEN = 0.618034  # of the circle of hues, between two classes: a few classes are far apart
LIGHTS = ((0.95, 0.85), (0.55, 1.0), (0.9, 0.5))  # saturation and value, in turn
PALETTE_SIZE = 256  # colours of a PNG's palette


def make_palette(num_classes: int) -> list[tuple[int, int, int]]:
    """Return an RGB colour, from 0 to 255, for each class. Neighbours differ in hue and brightness."""
    colours = []
    for index in range(num_classes):
        saturation, value = LIGHTS[index % len(LIGHTS)]
        red, green, blue = colorsys.hsv_to_rgb((0.6 + index * GOLDEN) % 1, saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours


def encode_labels(labels: NDArray[Any], meta: dict[str, Any], first: int = 0) -> bytes:
    """Return the class of each pixel as a PNG with a palette, or, if 256 values are too few, in 16 bits of grey.

    Args:
        labels: classes from 0, (H, W).
        meta: classes, and their RGB colours as palette.
        first: value of the first class.
    """
    if first + len(meta['classes']) > PALETTE_SIZE:
        image = Image.fromarray(labels.astype(np.uint16) + np.uint16(first))
    else:
        image = Image.fromarray(labels.astype(np.uint8) + np.uint8(first))
        # For a short palette Pillow writes fewer bits a pixel, and changes values beyond the palette.
        colours = np.zeros((PALETTE_SIZE, 3), np.uint8)
        palette = meta['palette'][: PALETTE_SIZE - first]
        colours[first : first + len(palette)] = palette
        image.putpalette(colours.tobytes())
    encoded = io.BytesIO()
    image.save(encoded, 'PNG')
    return encoded.getvalue()
