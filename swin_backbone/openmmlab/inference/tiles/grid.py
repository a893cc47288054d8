"""Where the tiles of a large picture lie, which of its pixels each finishes, and with what weight each counts.

Along an axis of length L, tiles of side T start every s = T - overlap pixels. Tile k finishes the cell
[k s, (k + 1) s), the last one all that is left. In the overlap [k s, k s + overlap) the weights of tiles k - 1 and k
add up to 1:

    tile k - 1  ------------\\
                             \\________     the quarters of the overlap next to the two cuts have weights 0 and 1,
    tile k                   /--------     so no tile has a say closer to its cut than a quarter of the overlap
                ____________/
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....windows.grid import Size


class Window(NamedTuple):
    """A rectangle of pixels: rows from `top` to `bottom`, columns from `left` to `right`, both without the last."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def size(self) -> Size:
        return self.bottom - self.top, self.right - self.left

    def within(self, other: 'Window') -> tuple[slice, slice]:
        """What of an array of `other` is of this window."""
        return (
            slice(self.top - other.top, self.bottom - other.top),
            slice(self.left - other.left, self.right - other.left),
        )


@dataclass(frozen=True)
class Axis:
    """The tiles along one axis; see the head of this file."""

    length: int
    tile: int
    overlap: int
    period: int

    @property
    def step(self) -> int:
        return self.tile - self.overlap

    @property
    def count(self) -> int:
        return max(1, math.ceil((self.length - self.overlap) / self.step))

    @property
    def blocks(self) -> int:
        return math.ceil(self.length / self.step)

    def span(self, k: int) -> tuple[int, int]:
        """What tile k sees. The last is moved back to see as much as the others, but by a multiple of the period."""
        start = k * self.step
        if k and k == self.count - 1:
            start = min(start, math.ceil((self.length - self.tile) / self.period) * self.period)
        return start, min(start + self.tile, self.length)

    def cell(self, k: int) -> tuple[int, int]:
        return k * self.step, self.length if k == self.count - 1 else (k + 1) * self.step

    def weights(self, k: int) -> NDArray[Any]:
        """Of the pixels from the begin of tile k's cell to the end of the tile, float32."""
        weights = np.ones(self.span(k)[1] - k * self.step, np.float32)
        rise = np.clip((np.arange(self.overlap, dtype=np.float32) + 0.5) * 2 / max(1, self.overlap) - 0.5, 0, 1)
        if k:
            weights[: self.overlap] = rise
        if k < self.count - 1:
            weights[self.step :] = 1 - rise
        return weights


class Grid:
    """The tiles of a picture, numbered row by row.

    Args:
        size: height and width of the picture.
        tile: side of a tile, in pixels.
        overlap: of neighbours, from 0 to half a tile: no pixel is in more than two tiles along an axis.
        period: the last tiles of a row and column start at a multiple of it.

    Raises:
        ValueError: if tile or overlap is out of range.
    """

    def __init__(self, size: Size, tile: int, overlap: int, period: int = 1):
        if tile < 32:
            raise ValueError(f'tile takes a side of at least 32 pixels, got {tile}')
        if not 0 <= overlap <= tile // 2:
            raise ValueError(f'overlap takes 0 to half a tile, {tile // 2} pixels, got {overlap}')
        if (tile - overlap) % 16:
            raise ValueError(
                f'tile - overlap must be a multiple of 16, the side of what a TIFF is made of, got {tile} - {overlap}'
            )
        self.size, self.tile, self.overlap, self.step = size, tile, overlap, tile - overlap
        self.vertical, self.horizontal = (Axis(length, tile, overlap, period) for length in size)
        self.rows, self.columns = self.vertical.count, self.horizontal.count

    def __len__(self) -> int:
        return self.rows * self.columns

    def place(self, index: int) -> tuple[int, int]:
        """The row and column of a tile."""
        return divmod(index, self.columns)

    def window(self, index: int) -> Window:
        """What a tile sees."""
        row, column = self.place(index)
        (top, bottom), (left, right) = self.vertical.span(row), self.horizontal.span(column)
        return Window(top, left, bottom, right)

    def cell(self, index: int) -> Window:
        """What is finished once all tiles up to this one are there."""
        row, column = self.place(index)
        (top, bottom), (left, right) = self.vertical.cell(row), self.horizontal.cell(column)
        return Window(top, left, bottom, right)

    def blocks(self, index: int) -> Iterator[tuple[int, Window]]:
        """The blocks of step x step pixels that a tile finishes, numbered row by row, and where they lie."""
        cell, step = self.cell(index), self.step
        for top in range(cell.top, cell.bottom, step):
            for left in range(cell.left, cell.right, step):
                number = top // step * self.horizontal.blocks + left // step
                yield number, Window(top, left, min(top + step, cell.bottom), min(left + step, cell.right))

    def cuts(self, index: int) -> Window:
        """What a tile sees, and without end where that is the picture's border: what lies inside is not cut."""
        top, left, bottom, right = self.window(index)
        far = 1 << 62
        height, width = self.size
        return Window(
            top if top else -far, left if left else -far, bottom if bottom < height else far,
            right if right < width else far,
        )  # fmt: skip

    def neighbours(self, index: int) -> list[int]:
        """The tiles around one."""
        row, column = self.place(index)
        around = [(row + y, column + x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]
        return [r * self.columns + c for r, c in around if 0 <= r < self.rows and 0 <= c < self.columns]

    def shard(self, number: int, of: int) -> range:
        """The tiles of one of several shards, in which all have the same number of tiles, or one more."""
        return range(number * len(self) // of, (number + 1) * len(self) // of)
