"""Colours that are told apart: for classes that have none of their own."""

import colorsys

GOLDEN = 0.618034  # of the circle of hues from one class to the next: no two of a few are near each other
LIGHTS = ((0.95, 0.85), (0.55, 1.0), (0.9, 0.5))  # saturation and value, in turn


def distinct_colours(number: int) -> list[tuple[int, int, int]]:
    """RGB colours from 0 to 255, one for each class: neighbours differ in hue and in brightness."""
    colours = []
    for index in range(number):
        saturation, value = LIGHTS[index % len(LIGHTS)]
        red, green, blue = colorsys.hsv_to_rgb((0.6 + index * GOLDEN) % 1, saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours
