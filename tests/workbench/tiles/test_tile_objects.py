"""Objects of tiles: masks as runs, and merged twins."""

import numpy as np
import pytest
from helpers.openmmlab.oracles import COLOURS, Detector, scene
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')

from swin_backbone.workbench.data.media import Frame, Medium
from swin_backbone.workbench.tiles import objects as tiled
from swin_backbone.workbench.tiles.grid import Grid, Window
from swin_backbone.workbench.tiles.writers import pack_objects, unpack_objects

masks_HW = st.tuples(
    st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([0, 0.2, 0.8, 1])
).map(lambda drawn: np.random.default_rng(drawn[2]).random(drawn[:2]) < drawn[3])


def runs(mask_HW):
    return tiled.find_runs(mask_HW, Window(0, 0, *mask_HW.shape), mask_HW.shape[0])


@given(masks_HW)
def test_an_rle_is_that_of_pycocotools(mask_HW):
    from pycocotools import mask as coco

    expected = coco.encode(np.asfortranarray(mask_HW.astype(np.uint8)))
    results = tiled.encode_runs(runs(mask_HW), mask_HW.shape)
    assert results == dict(size=expected['size'], counts=expected['counts'].decode())
    assert (tiled.crop_of_rle(results, (0, 0, *mask_HW.shape[::-1])) == mask_HW).all()
    assert tiled.count_pixels(runs(mask_HW)) == mask_HW.sum()


def test_masks_in_pictures_too_large_for_pycocotools():
    size = 100_000, 120_000
    mask = np.random.default_rng(0).random((30, 40)) < 0.5
    rle = tiled.encode_runs(tiled.find_runs(mask, Window(99_000, 110_000, 99_030, 110_040), size[0]), size)
    assert rle['size'] == list(size)
    assert (tiled.crop_of_rle(rle, (110_000, 99_000, 40, 30)) == mask).all()
    assert not tiled.crop_of_rle(rle, (0, 0, 100, 100)).any()


def merged(picture, grid, masks=True):
    """Return the objects of an oracle in all tiles, converted to manifest entries and merged."""
    detector, merger, results = Detector(masks=masks), tiled.Merger(grid), []
    for index in range(len(grid)):
        window = grid.window(index)
        pixels = picture[window.top : window.bottom, window.left : window.right]
        (sample,) = detector.predict([detector.preprocess(Frame(Medium(None, '', False), 0, pixels, pixels.shape[:2]))])
        instances = sample.pred_instances
        here = []
        for number, box in enumerate(instances.bboxes + [window.left, window.top] * 2):
            mask = tiled.find_runs(instances.masks[number], window, grid.size[0]) if masks else None
            here.append(tiled.Object(tuple(box), float(instances.scores[number]), int(instances.labels[number]), mask))
        results += merger.add(index, unpack_objects(pack_objects(tiled.mark_cut(here, grid, index))))
    return results


@pytest.mark.parametrize('masks', [True, False])
@pytest.mark.parametrize('shift', [(0, 0), (53, 11)])
def test_shifted_tiles_find_the_same_objects(masks, shift):
    """Small objects, and objects larger than every tile."""
    picture, expected = scene((500, 600), 60, largest=60)
    picture = np.pad(picture, ((shift[0], 0), (shift[1], 0), (0, 0)), constant_values=90)
    grid = Grid(picture.shape[:2], 144, 64)
    results = merged(picture, grid, masks)
    assert len(results) == len(expected)
    rest = [np.pad(one, ((shift[0], 0), (shift[1], 0))) for one in expected]
    for one in results:
        x1, y1, x2, y2 = map(int, one.box)
        here = next(mask for mask in rest if mask[y1:y2, x1:x2].sum() == mask.sum())
        rows, columns = np.nonzero(here)
        assert (x1, y1, x2, y2) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        if masks:
            dense = tiled.crop_of_rle(tiled.encode_runs(one.runs, grid.size), (0, 0, *grid.size[::-1]))
            assert (dense == here).all()


def test_an_object_through_many_tiles_is_one():
    picture = np.full((900, 900, 3), 90, np.uint8)
    picture[430:470, 10:890] = COLOURS[0]  # a road
    picture[20:880, 600:630] = COLOURS[1]
    picture[430:470, 600:630] = COLOURS[0]
    results = merged(picture, Grid((900, 900), 160, 64))
    assert sorted(one.box for one in results) == [(10, 430, 890, 470), (600, 20, 630, 430), (600, 470, 630, 880)]


def test_the_last_tile_adds_no_part_of_an_object():
    """It moves back, here over the second tile before it, which sees the object whole."""
    grid, box = Grid((200, 883), 256, 48), (613, 90, 642, 120)
    merger, results = tiled.Merger(grid), []
    for index in range(len(grid)):
        window = grid.window(index)
        left, right = max(box[0], window.left), min(box[2], window.right)
        here = [tiled.Object((left, 90, right, 120), 0.5, 0, None)] if left < right else []
        results += merger.add(index, tiled.mark_cut(here, grid, index))
    assert [item.box for item in results] == [box]
