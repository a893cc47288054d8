"""The objects of a large picture from those of its tiles: each once, and whole where it lies across a seam.

A mask is a set of runs, (m, 2) int64: in the picture's pixels column by column, as in COCO's RLE, begin and end of each
piece of a column, sorted. So a mask takes as much memory as it has outline, whatever the size of the picture.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ....windows.grid import Size
from .grid import Grid, Window

MARGIN = 8  # pixels: an object that ends closer to the cut of its tile may go on beyond it
TWINS = 0.5  # IoU of what two tiles both see of an object


class Object(NamedTuple):
    """An object: its box (x1, y1, x2, y2) in the picture's pixels, its mask's runs, if any, whether its tile cut it."""

    box: tuple[float, float, float, float]
    score: float
    label: int
    runs: Optional[NDArray[Any]]
    is_cut: bool = False


def runs_of(mask_HW: NDArray[Any], window: Window, height: int) -> NDArray[Any]:
    """The runs of a mask that covers a window of a picture of so many rows."""
    columns_WH = np.pad(mask_HW.T.astype(np.int8), ((0, 0), (1, 1)))
    steps = np.diff(columns_WH, axis=1)
    (x, begin), (_, end) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    first = (window.left + x.astype(np.int64)) * height + window.top
    return np.stack([first + begin, first + end], 1)


def clip_runs(runs: NDArray[Any], window: Window, height: int) -> NDArray[Any]:
    """What of a mask is in a window."""
    column = runs[:, 0] // height
    inside = (column >= window.left) & (column < window.right)
    first = column[inside] * height
    begin = np.maximum(runs[inside, 0], first + window.top)
    end = np.minimum(runs[inside, 1], first + window.bottom)
    cut: NDArray[Any] = np.stack([begin, end], 1)[begin < end]
    return cut


def unite_runs(masks: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The union of masks."""
    runs: NDArray[Any] = np.concatenate(masks)
    runs = runs[np.lexsort((runs[:, 1], runs[:, 0]))]
    if not len(runs):
        return runs
    furthest = np.maximum.accumulate(runs[:, 1])
    starts = np.flatnonzero(np.r_[True, runs[1:, 0] >= furthest[:-1]])
    return np.stack([runs[starts, 0], furthest[np.r_[starts[1:] - 1, len(runs) - 1]]], 1)


def area_of(runs: NDArray[Any]) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum())


def rle_of(runs: NDArray[Any], size: Size) -> dict[str, Any]:
    """COCO's compressed RLE of a mask in a picture of that height and width.

    pycocotools makes the same of a dense mask; in a picture of more than 2 ** 32 pixels it can neither hold one nor
    read this, and `crop_of_rle` can.
    """
    bounds: NDArray[Any] = runs.ravel()
    touch = np.flatnonzero(bounds[1:-1:2] == bounds[2::2]) * 2 + 1  # a column's end that is the next one's begin
    bounds = np.delete(bounds, np.concatenate([touch, touch + 1])) if len(touch) else bounds
    total = size[0] * size[1]
    edges = [0, *bounds.tolist(), *([total] if not len(bounds) or bounds[-1] < total else [])]
    counts = [end - begin for begin, end in zip(edges, edges[1:])]
    text = bytearray()
    for index, count in enumerate(counts):
        left = count - counts[index - 2] if index > 2 else count
        while True:
            five, left = left & 31, left >> 5
            more = left != -1 if five & 16 else left != 0
            text.append((five | 32 if more else five) + 48)
            if not more:
                break
    return dict(size=list(size), counts=text.decode('ascii'))


def runs_of_rle(segmentation: dict[str, Any]) -> NDArray[Any]:
    """The runs of what `rle_of` or pycocotools wrote; one that goes over several columns stays one."""
    counts: list[int] = []
    value = shift = 0
    for character in segmentation['counts'].encode('ascii'):
        five = character - 48
        value |= (five & 31) << shift
        shift += 5
        if not five & 32:
            if five & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    bounds = np.cumsum(counts, dtype=np.int64)
    return np.stack([bounds[0 : len(bounds) - 1 : 2], bounds[1::2]], 1)


def columns_of(runs: NDArray[Any], height: int) -> NDArray[Any]:
    """Runs of one column each, from runs that may go over several."""
    first, last = runs[:, 0] // height, (runs[:, 1] - 1) // height
    which = np.repeat(np.arange(len(runs)), last - first + 1)
    column = (
        first[which]
        + np.arange(len(which))
        - np.repeat(np.cumsum(last - first + 1) - (last - first + 1), last - first + 1)
    )
    return np.stack([np.maximum(runs[which, 0], column * height), np.minimum(runs[which, 1], (column + 1) * height)], 1)


def crop_of_rle(segmentation: dict[str, Any], box: Sequence[int]) -> NDArray[Any]:
    """The part of a mask in a box, without the rest of the picture.

    Args:
        segmentation: of a line of `objects/NAME.jsonl`.
        box: (x, y, width, height) in pixels, as COCO's bbox.

    Returns:
        (height, width) bool.
    """
    x, y, width, height = box
    rows = segmentation['size'][0]
    window = Window(y, x, y + height, x + width)
    mask = np.zeros((width, height), bool)
    for begin, end in clip_runs(columns_of(runs_of_rle(segmentation), rows), window, rows).tolist():
        mask[begin // rows - x, begin % rows - y : (end - 1) % rows - y + 1] = True
    return mask.T


def mark_cut(objects: Iterable[Object], grid: Grid, index: int) -> list[Object]:
    """The objects of a tile that are its to report, each with whether the tile cuts it.

    One that is cut, and lies whole in the window of a neighbour, is left to the neighbour, which sees more of it.
    """
    own = grid.cuts(index)
    others = [grid.cuts(other) for other in grid.neighbours(index)]
    kept = []
    for one in objects:
        is_cut = not _is_inside(one.box, own)
        if not (is_cut and any(_is_inside(one.box, other) for other in others)):
            kept.append(one._replace(is_cut=is_cut))
    return kept


def _is_inside(box: Sequence[float], cuts: Window) -> bool:
    x1, y1, x2, y2 = box
    return (
        x1 >= cuts.left + MARGIN
        and y1 >= cuts.top + MARGIN
        and x2 <= cuts.right - MARGIN
        and y2 <= cuts.bottom - MARGIN
    )


class Merger:
    """Finds twins among the objects of neighbouring tiles, which come row by row.

    The grid of tiles is the index over space: a tile is compared with the four neighbours before it alone, and of their
    objects with those that reach into what both tiles see. An object is given as soon as no tile to come can
    have a part of it, so no more than the objects of two rows of tiles are kept, and those that go on.

    Attributes:
        compared: pairs of objects whose overlap was computed.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        self.compared = 0
        self.objects: dict[tuple[int, int], Object] = {}  # by tile, and number in it
        self.parent: dict[tuple[int, int], tuple[int, int]] = {}
        self.tiles: dict[int, list[tuple[int, int]]] = {}

    def add(self, index: int, objects: Sequence[Object]) -> Iterator[Object]:
        """Add the objects of the next tile; gives those that are finished by it."""
        keys = [(index, number) for number in range(len(objects))]
        self.tiles[index] = keys
        for key, one in zip(keys, objects):
            self.objects[key], self.parent[key] = one, key
        for other in self.grid.neighbours(index):
            if other < index:
                self._match(other, index)
        row, column = self.grid.place(index)
        if column == self.grid.columns - 1:
            for tile in range((row - 1) * self.grid.columns, row * self.grid.columns):
                self.tiles.pop(tile, None)
            yield from self._finish(index + 1 if row == self.grid.rows - 1 else row * self.grid.columns)

    def _match(self, before: int, index: int) -> None:
        """Unite each object of a tile with its twin in a tile before it."""
        a, b = self.grid.window(before), self.grid.window(index)
        both = Window(*map(max, a[:2], b[:2]), *map(min, a[2:], b[2:]))
        if min(both.size) <= 0:
            return
        left, right = (
            [(key, seen) for key in self.tiles.get(tile, ()) if (seen := _box_in(self.objects[key].box, both))]
            for tile in (before, index)
        )
        found = []
        for key, box in left:
            for other, its in right:
                if self.objects[key].label == self.objects[other].label and _overlap(box, its) > 0:
                    self.compared += 1
                    found.append((-self._alike(key, other, box, its, both), key, other))
        taken: set[tuple[int, int]] = set()
        for alike, key, other in sorted(found):
            if -alike >= TWINS and key not in taken and other not in taken:
                taken.update((key, other))
                first, second = sorted((self._root(key), self._root(other)))
                self.parent[second] = first

    def _alike(self, key: Any, other: Any, box: Any, its: Any, both: Window) -> float:
        """IoU of what two tiles both see of two objects: of masks, or of boxes where there are none."""
        height = self.grid.size[0]
        masks = [one.runs for one in (self.objects[key], self.objects[other]) if one.runs is not None]
        if len(masks) < 2:
            common = _overlap(box, its)
            return common / (_overlap(box, box) + _overlap(its, its) - common)
        seen = [clip_runs(runs, both, height) for runs in masks]
        union = area_of(unite_runs(seen))
        return (area_of(seen[0]) + area_of(seen[1]) - union) / union if union else 0.0

    def _root(self, key: tuple[int, int]) -> tuple[int, int]:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def _finish(self, before: int) -> Iterator[Object]:
        """Give the objects that have no part in a tile from `before` on."""
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key in self.parent:
            groups.setdefault(self._root(key), []).append(key)
        for root in sorted(groups):
            keys = sorted(groups[root])
            if keys[-1][0] < before:
                yield _united([self.objects[key] for key in keys])
                for key in keys:
                    del self.objects[key], self.parent[key]


def _united(twins: Sequence[Object]) -> Object:
    """One object of its twins: the best that no tile cuts, else all of them together."""
    whole = [one for one in twins if not one.is_cut]
    best = max(whole or twins, key=lambda one: one.score)
    if whole or len(twins) == 1:
        return best
    boxes = np.array([one.box for one in twins])
    masks = [one.runs for one in twins if one.runs is not None]
    (x1, y1), (x2, y2) = boxes[:, :2].min(0).tolist(), boxes[:, 2:].max(0).tolist()
    return best._replace(box=(x1, y1, x2, y2), runs=unite_runs(masks) if masks else None)


def _box_in(box: Sequence[float], window: Window) -> Optional[tuple[float, float, float, float]]:
    x1, y1 = max(box[0], window.left), max(box[1], window.top)
    x2, y2 = min(box[2], window.right), min(box[3], window.bottom)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
