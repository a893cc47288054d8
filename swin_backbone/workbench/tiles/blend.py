"""Blend the scores of overlapping tiles into one map, in memory that depends on the tile alone.

Layout: K classes, H height, W width.
"""

from typing import IO, Any, Optional

import numpy as np
from numpy.typing import NDArray

from .grid import Grid


class Blender:
    """Sum the weighted scores of tiles, which come row by row, and return each cell once it is finished.

    Sums for the tile to the right stay in memory, and sums for the row below in a file. A run that begins at the
    `find_first_tile` of a tile gives this tile and those after it the same bits.

    Args:
        classes: number of classes.
        scratch: file that gets columns * (classes + 1) * overlap * tile * 4 bytes.
    """

    def __init__(self, grid: Grid, classes: int, scratch: IO[bytes]):
        self.grid, self.classes, self.scratch = grid, classes, scratch
        self.right: Optional[NDArray[Any]] = None
        self.below: set[int] = set()  # columns with sums in the file

    @staticmethod
    def find_first_tile(grid: Grid, index: int) -> int:
        """Return the tile to begin with: the cell of the tile `index` needs the tiles above and to the left."""
        return max(0, index - grid.columns - 1) if grid.overlap else index

    def add(self, index: int, scores_KHW: Optional[NDArray[Any]]) -> Optional[tuple[NDArray[Any], NDArray[Any]]]:
        """Add a tile.

        Args:
            scores_KHW: scores of the tile's window, float32; None for a skipped tile.

        Returns:
            The sums of the tile's cell (K, H, W), and the pixels with scores (H, W) bool. None: no pixel has scores.
        """
        grid = self.grid
        row, column = grid.place(index)
        if not column:
            self.right = None
        if scores_KHW is None and self.right is None and column not in self.below:
            return None
        cell, window = grid.cell(index), grid.window(index)
        overlap, stride = grid.overlap, grid.stride
        weights_HW = np.outer(grid.vertical.weights(row), grid.horizontal.weights(column))
        sums = np.zeros((self.classes + 1, *weights_HW.shape), np.float32)  # the last plane: sums of the weights
        if scores_KHW is not None:
            inside_KHW = scores_KHW[:, cell.top - window.top :, cell.left - window.left :]
            np.multiply(inside_KHW, weights_HW, out=sums[:-1])
            sums[-1] = weights_HW
        height, width = cell.size
        if column in self.below:
            sums[:, :overlap, :width] += self._read(column, width)
        if self.right is not None:
            sums[:, :, :overlap] += self.right
        self.below.discard(column)
        if row < grid.rows - 1 and sums[-1, stride:, :width].any():
            self._write(column, sums[:, stride:, :width])
        goes_on = column < grid.columns - 1 and sums[-1, :, stride:].any()
        self.right = sums[:, :, stride:].copy() if goes_on else None
        return sums[:-1, :height, :width], sums[-1, :height, :width] > 0

    def _write(self, column: int, sums: NDArray[Any]) -> None:
        self.scratch.seek(self._offset(column))
        self.scratch.write(sums.tobytes())
        self.below.add(column)

    def _read(self, column: int, width: int) -> NDArray[Any]:
        shape = (self.classes + 1, self.grid.overlap, width)
        self.scratch.seek(self._offset(column))
        return np.frombuffer(self.scratch.read(4 * int(np.prod(shape))), np.float32).reshape(shape)

    def _offset(self, column: int) -> int:
        return column * (self.classes + 1) * self.grid.overlap * self.grid.tile * 4
