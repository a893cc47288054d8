"""Colours of classes are told apart."""

import itertools

from swin_backbone.pictures.colours import distinct_colours


def test_neighbours_differ_most():
    def distance(one, other):
        return sum((a - b) ** 2 for a, b in zip(one, other)) ** 0.5

    colours = distinct_colours(20)
    assert min(map(distance, colours, colours[1:])) > 150
    assert min(itertools.starmap(distance, itertools.combinations(colours, 2))) > 60
    assert all(0 <= side <= 255 for colour in distinct_colours(1000) for side in colour)
    assert distinct_colours(0) == []
