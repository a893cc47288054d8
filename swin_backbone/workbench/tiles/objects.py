"""Objects of a large picture, merged from the objects of its tiles: no doubles, and no cuts at seams.

A mask is a list of runs, (m, 2) int64, sorted. A run is a piece of a column. Its begin and end count pixels column by
column, as COCO's RLE does. The memory of a mask depends on the outline, not on the size of the picture.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ...sizes import Size
from ..data.masks import decode_run_lengths
from .grid import Grid, Window

MARGIN = 8  # pixels: a tile cuts an object that ends closer to the border of the tile
TWINS = 0.5  # IoU of twins within the overlap of their tiles
LONGEST = 12  # characters of a run length of an RLE: 60 bits

Box = tuple[float, float, float, float]  # x1, y1, x2, y2
Key = tuple[int, int]  # index of a tile, and of an object in the tile


class Object(NamedTuple):
    """An object in the pixels of the picture: box, score, class, runs of the mask, and whether the tile cuts it."""

    box: Box
    score: float
    label: int
    runs: Optional[NDArray[Any]]
    is_cut: bool = False


def find_runs(mask_HW: NDArray[Any], window: Window, height: int) -> NDArray[Any]:
    """Return the runs of a mask of a window, in a picture of `height` rows."""
    columns_WH = np.pad(mask_HW.T.astype(np.int8), ((0, 0), (1, 1)))
    steps = np.diff(columns_WH, axis=1)
    (x, begin), (_, end) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    first = (window.left + x.astype(np.int64)) * height + window.top
    return np.stack([first + begin, first + end], 1)


def clip_runs(runs: NDArray[Any], window: Window, height: int) -> NDArray[Any]:
    """Return the parts of runs inside a window."""
    column = runs[:, 0] // height
    inside = (column >= window.left) & (column < window.right)
    first = column[inside] * height
    begin = np.maximum(runs[inside, 0], first + window.top)
    end = np.minimum(runs[inside, 1], first + window.bottom)
    clipped: NDArray[Any] = np.stack([begin, end], 1)[begin < end]
    return clipped


def unite_runs(masks: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the runs of the union of masks."""
    runs: NDArray[Any] = np.concatenate(masks)
    runs = runs[np.lexsort((runs[:, 1], runs[:, 0]))]
    if not len(runs):
        return runs
    furthest = np.maximum.accumulate(runs[:, 1])
    starts = np.flatnonzero(np.r_[True, runs[1:, 0] >= furthest[:-1]])
    return np.stack([runs[starts, 0], furthest[np.r_[starts[1:] - 1, len(runs) - 1]]], 1)


def count_pixels(runs: NDArray[Any]) -> int:
    """Return the number of pixels."""
    return int((runs[:, 1] - runs[:, 0]).sum())


def encode_runs(runs: NDArray[Any], size: Size) -> dict[str, Any]:
    """Return COCO's compressed RLE of a mask, in a picture of `size` (height, width).

    It equals the RLE of pycocotools, also for pictures of more than 2 ** 32 pixels, which pycocotools cannot hold.
    """
    bounds: NDArray[Any] = runs.ravel()
    joints = np.flatnonzero(bounds[1:-1:2] == bounds[2::2]) * 2 + 1  # a run ends where the next column's run begins
    bounds = np.delete(bounds, np.concatenate([joints, joints + 1])) if len(joints) else bounds
    total = size[0] * size[1]
    edges = [0, *bounds.tolist(), *([total] if not len(bounds) or bounds[-1] < total else [])]
    counts = [end - begin for begin, end in zip(edges, edges[1:])]
    text = bytearray()
    for index, count in enumerate(counts):
        rest = count - counts[index - 2] if index > 2 else count
        while True:
            five, rest = rest & 31, rest >> 5
            goes_on = rest != -1 if five & 16 else rest != 0
            text.append((five | 32 if goes_on else five) + 48)
            if not goes_on:
                break
    return dict(size=list(size), counts=text.decode('ascii'))


def crop_of_rle(segmentation: dict[str, Any], box: Sequence[int]) -> NDArray[Any]:
    """Return the part of a mask inside a box, without decoding the rest.

    Args:
        segmentation: `segmentation` of a line of `objects/NAME.jsonl`.
        box: (x, y, width, height) in pixels, as COCO's bbox.

    Returns:
        (height, width) bool.
    """
    lengths = decode_run_lengths(segmentation['counts'], LONGEST)
    if lengths is None:
        raise ValueError(f'segmentation takes a compressed RLE, got {segmentation!r:.80}')
    x, y, width, height = box
    rows = segmentation['size'][0]
    index_HW = (x + np.arange(width)) * rows + y + np.arange(height)[:, None]
    mask_HW: NDArray[Any] = np.searchsorted(np.cumsum(lengths), index_HW, side='right') % 2 == 1
    return mask_HW


def mark_cut(objects: Iterable[Object], grid: Grid, index: int) -> list[Object]:
    """Return the objects of a tile with `is_cut`. Cut objects that a neighbour sees whole are left out."""
    window = grid.open_window(index)
    neighbours = [grid.open_window(neighbour) for neighbour in grid.neighbours(index, 2)]
    marked = []
    for item in objects:
        is_cut = not _is_inside(item.box, window)
        if not (is_cut and any(_is_inside(item.box, neighbour) for neighbour in neighbours)):
            marked.append(item._replace(is_cut=is_cut))
    return marked


def _is_inside(box: Box, window: Window) -> bool:
    x1, y1, x2, y2 = box
    is_inside_x = window.left + MARGIN <= x1 and x2 <= window.right - MARGIN
    return is_inside_x and window.top + MARGIN <= y1 and y2 <= window.bottom - MARGIN


class Merger:
    """Merge twins among the objects of neighbouring tiles. Tiles come row by row.

    A tile is compared with the four earlier neighbours, within the overlap. An object is finished once no later tile
    can have a part of it. Memory holds the unfinished objects, and the objects of two rows of tiles.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        self.objects: dict[Key, Object] = {}
        self.parent: dict[Key, Key] = {}  # trees of twins
        self.tiles: dict[int, list[Key]] = {}

    def add(self, index: int, objects: Sequence[Object]) -> Iterator[Object]:
        """Add the objects of the next tile, and yield the finished objects."""
        keys = [(index, place) for place in range(len(objects))]
        self.tiles[index] = keys
        self.objects.update(zip(keys, objects))
        self.parent.update(zip(keys, keys))
        for neighbour in self.grid.neighbours(index):
            if neighbour < index:
                self._match(neighbour, index)
        row, column = self.grid.place(index)
        if column == self.grid.columns - 1:
            for tile in range((row - 1) * self.grid.columns, row * self.grid.columns):
                self.tiles.pop(tile, None)
            yield from self._finish(index + 1 if row == self.grid.rows - 1 else row * self.grid.columns)

    def _match(self, before: int, index: int) -> None:
        """Unite the twins of two tiles, the most similar first."""
        a, b = self.grid.window(before), self.grid.window(index)
        overlap = Window(*map(max, a[:2], b[:2]), *map(min, a[2:], b[2:]))
        if min(overlap.size) <= 0:
            return
        first, second = (
            [(key, box) for key in self.tiles.get(tile, ()) if (box := _clip_box(self.objects[key].box, overlap))]
            for tile in (before, index)
        )
        pairs = []
        for key, box in first:
            for key_2, box_2 in second:
                if self.objects[key].label == self.objects[key_2].label and _measure_common_area(box, box_2) > 0:
                    pairs.append((-self._compare(key, key_2, box, box_2, overlap), key, key_2))
        matched: set[Key] = set()
        for negative_iou, key, key_2 in sorted(pairs):
            if -negative_iou >= TWINS and matched.isdisjoint((key, key_2)):
                matched.update((key, key_2))
                root, child = sorted((self._find_root(key), self._find_root(key_2)))
                self.parent[child] = root

    def _compare(self, key: Key, key_2: Key, box: Box, box_2: Box, overlap: Window) -> float:
        """Return the IoU of two objects within the overlap: of masks or, without masks, of boxes."""
        masks = [item.runs for item in (self.objects[key], self.objects[key_2]) if item.runs is not None]
        if len(masks) < 2:
            common = _measure_common_area(box, box_2)
            return common / (_measure_common_area(box, box) + _measure_common_area(box_2, box_2) - common)
        masks = [clip_runs(runs, overlap, self.grid.size[0]) for runs in masks]
        union = count_pixels(unite_runs(masks))
        return (count_pixels(masks[0]) + count_pixels(masks[1]) - union) / union if union else 0.0

    def _find_root(self, key: Key) -> Key:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def _finish(self, end: int) -> Iterator[Object]:
        """Yield and forget the objects whose parts are all of tiles before `end`."""
        groups: dict[Key, list[Key]] = {}
        for key in self.parent:
            groups.setdefault(self._find_root(key), []).append(key)
        for _, keys in sorted(groups.items()):
            keys.sort()
            if keys[-1][0] < end:
                yield _unite([self.objects[key] for key in keys])
                for key in keys:
                    del self.objects[key], self.parent[key]


def _unite(twins: Sequence[Object]) -> Object:
    """Return the best whole twin or, if every tile cuts the object, the union of the twins."""
    whole = [item for item in twins if not item.is_cut]
    best = max(whole or twins, key=lambda item: item.score)
    if whole or len(twins) == 1:
        return best
    boxes = np.array([item.box for item in twins])
    masks = [item.runs for item in twins if item.runs is not None]
    (x1, y1), (x2, y2) = boxes[:, :2].min(0).tolist(), boxes[:, 2:].max(0).tolist()
    return best._replace(box=(x1, y1, x2, y2), runs=unite_runs(masks) if masks else None)


def _clip_box(box: Box, window: Window) -> Optional[Box]:
    x1, y1 = max(box[0], window.left), max(box[1], window.top)
    x2, y2 = min(box[2], window.right), min(box[3], window.bottom)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _measure_common_area(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
