"""Distinct colours, for classes without colours."""

import colorsys

GOLDEN = 0.618034  # of the circle of hues, between two classes: a few classes are far apart
LIGHTS = ((0.95, 0.85), (0.55, 1.0), (0.9, 0.5))  # saturation and value, in turn


def distinct_colours(number: int) -> list[tuple[int, int, int]]:
    """Return an RGB colour, from 0 to 255, for each class. Neighbours differ in hue and brightness."""
    colours = []
    for index in range(number):
        saturation, value = LIGHTS[index % len(LIGHTS)]
        red, green, blue = colorsys.hsv_to_rgb((0.6 + index * GOLDEN) % 1, saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours
