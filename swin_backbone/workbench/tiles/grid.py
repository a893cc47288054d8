"""Tiles of a large picture: their windows, finished cells, and weights.

Along an axis of length L, tiles of side T start every s = T - overlap pixels. Tile k finishes the cell
[k s, (k + 1) s), and the last tile finishes the rest. In the overlap [k s, k s + overlap) the weights of the tiles
k - 1 and k have the sum 1:

    tile k - 1  ------------\\
                             \\________     weight 0 in the quarter of the overlap next to the cut of a tile,
    tile k                   /--------     weight 1 in the opposite quarter, linear between
                ____________/
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...sizes import Size

FAR = 1 << 62  # beyond any picture


class Window(NamedTuple):
    """A rectangle of pixels: rows from `top` to `bottom` (exclusive), columns from `left` to `right` (exclusive)."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def size(self) -> Size:
        return self.bottom - self.top, self.right - self.left

    def within(self, outer: 'Window') -> tuple[slice, slice]:
        """Return the slices of this window in an array of the window `outer`."""
        return (
            slice(self.top - outer.top, self.bottom - outer.top),
            slice(self.left - outer.left, self.right - outer.left),
        )


@dataclass(frozen=True)
class Axis:
    """The tiles along one axis; see the head of this file."""

    length: int
    tile: int
    overlap: int
    alignment: int

    @property
    def stride(self) -> int:
        return self.tile - self.overlap

    @property
    def count(self) -> int:
        return max(1, math.ceil((self.length - self.overlap) / self.stride))

    @property
    def blocks(self) -> int:
        return math.ceil(self.length / self.stride)

    def span(self, k: int) -> tuple[int, int]:
        """Return begin and end of tile k. The last one moves back to the full side, by a multiple of the alignment."""
        start = k * self.stride
        if k and k == self.count - 1:
            start = min(start, math.ceil((self.length - self.tile) / self.alignment) * self.alignment)
        return start, min(start + self.tile, self.length)

    def cell(self, k: int) -> tuple[int, int]:
        return k * self.stride, self.length if k == self.count - 1 else (k + 1) * self.stride

    def weights(self, k: int) -> NDArray[Any]:
        """Return the weights of the pixels that tile k has from its cell on, the cell and the overlap, float32."""
        weights = np.ones(self.span(k)[1] - k * self.stride, np.float32)
        rise = np.clip((np.arange(self.overlap, dtype=np.float32) + 0.5) * 2 / max(1, self.overlap) - 0.5, 0, 1)
        if k:
            weights[: self.overlap] = rise
        if k < self.count - 1:
            weights[self.stride :] = 1 - rise
        return weights


def choose_overlap(tile: int) -> int:
    """Return the largest overlap of tiles of a side, up to 128 pixels, that `Grid` takes."""
    largest = min(128, tile // 2)
    return max(0, largest - (largest - tile) % 16)


class Grid:
    """The tiles of a picture, numbered row by row.

    Args:
        size: height and width of the picture.
        tile: side of a tile, in pixels.
        overlap: overlap of neighbours, from 0 to half a tile: along an axis, a pixel is in at most two tiles.
        alignment: the last tiles of a row and column start at a multiple of this, in pixels.

    Raises:
        ValueError: if tile or overlap is out of range.
    """

    def __init__(self, size: Size, tile: int, overlap: int, alignment: int = 1):
        if not 0 <= overlap <= tile // 2:
            raise ValueError(f'overlap takes 0 to half a tile, {tile // 2} pixels, got {overlap}')
        if (tile - overlap) % 16:
            raise ValueError(f'tile - overlap must be a multiple of 16, as tiles of TIFFs are, got {tile} - {overlap}')
        self.size, self.tile, self.overlap = size, tile, overlap
        self.stride = tile - overlap
        self.vertical, self.horizontal = (Axis(length, tile, overlap, alignment) for length in size)
        self.rows, self.columns = self.vertical.count, self.horizontal.count

    def __len__(self) -> int:
        return self.rows * self.columns

    def place(self, index: int) -> tuple[int, int]:
        """Return the row and column of a tile."""
        return divmod(index, self.columns)

    def window(self, index: int) -> Window:
        """Return the window of a tile."""
        row, column = self.place(index)
        (top, bottom), (left, right) = self.vertical.span(row), self.horizontal.span(column)
        return Window(top, left, bottom, right)

    def open_window(self, index: int) -> Window:
        """Return the window of a tile, without end at the borders of the picture: no tile cuts an object there."""
        top, left, bottom, right = self.window(index)
        height, width = self.size
        return Window(top or -FAR, left or -FAR, bottom if bottom < height else FAR, right if right < width else FAR)

    def cell(self, index: int) -> Window:
        """Return the pixels that are finished by a tile, after all earlier tiles."""
        row, column = self.place(index)
        (top, bottom), (left, right) = self.vertical.cell(row), self.horizontal.cell(column)
        return Window(top, left, bottom, right)

    def blocks(self) -> Iterator[tuple[int, Window]]:
        """Yield the blocks of stride x stride pixels, row by row: the tile that finishes the block, and the window."""
        (height, width), stride = self.size, self.stride
        for y, x in np.ndindex(self.vertical.blocks, self.horizontal.blocks):
            index = min(y, self.rows - 1) * self.columns + min(x, self.columns - 1)
            top, left = y * stride, x * stride
            yield index, Window(top, left, min(top + stride, height), min(left + stride, width))

    def neighbours(self, index: int, reach: int = 1) -> list[int]:
        """Return the tiles around a tile, up to `reach` rows and columns away.

        The last tile of an axis, which moves back, may overlap the second tile before it too.
        """
        row, column = self.place(index)
        rows = range(max(0, row - reach), min(self.rows, row + reach + 1))
        columns = range(max(0, column - reach), min(self.columns, column + reach + 1))
        return [r * self.columns + c for r in rows for c in columns if (r, c) != (row, column)]

    def shard(self, index: int, count: int) -> range:
        """Return the tiles of a shard, one of `count`. Sizes of shards differ by at most one tile."""
        return range(index * len(self) // count, (index + 1) * len(self) // count)
