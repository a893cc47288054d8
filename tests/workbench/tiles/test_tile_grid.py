"""Windows of tiles finish every pixel once, and the sum of the weights is 1."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')

from swin_backbone.workbench.tiles.blend import Blender
from swin_backbone.workbench.tiles.grid import Grid, Window, choose_overlap

sides = st.integers(1, 400)


@st.composite
def grids(draw):
    step = draw(st.sampled_from([32, 48, 64, 112]))
    overlap = draw(st.integers(0, step))
    return Grid((draw(sides), draw(sides)), step + overlap, overlap, draw(st.sampled_from([1, 7, 16, 32])))


@settings(max_examples=40)
@given(grids())
def test_each_pixel_is_in_one_cell_and_one_block(grid):
    cells, blocks, whole = np.zeros(grid.size, int), np.zeros(grid.size, int), Window(0, 0, *grid.size)
    for index in range(len(grid)):
        cell, window = grid.cell(index), grid.window(index)
        cells[cell.within(whole)] += 1
        assert window.top <= cell.top
        assert window.left <= cell.left
        assert window.bottom >= cell.bottom
        assert window.right >= cell.right
        assert max(window.size) <= grid.tile
    for index, block in grid.blocks():
        blocks[block.within(whole)] += 1
        cell = grid.cell(index)
        assert (block.top % grid.stride, block.left % grid.stride) == (0, 0)
        assert cell.top <= block.top <= block.bottom <= cell.bottom
        assert cell.left <= block.left <= block.right <= cell.right
    assert (cells == 1).all()
    assert (blocks == 1).all()


@settings(max_examples=40)
@given(grids(), st.integers(0, 20))
def test_weights_add_up_to_one_wherever_one_begins(grid, first):
    """A blend of exact scores is exact. A warm-up from any tile gives equal bits."""
    picture = np.random.default_rng(0).normal(size=(2, *grid.size)).astype(np.float32)

    def cells(begin):
        blender = Blender(grid, 2, io.BytesIO())
        for index in range(begin, len(grid)):
            window = grid.window(index)
            yield index, *blender.add(index, picture[:, window.top : window.bottom, window.left : window.right])

    whole = {index: sums for index, sums, _ in cells(0)}
    for index, sums in whole.items():
        cell = grid.cell(index)
        np.testing.assert_allclose(sums, picture[:, cell.top : cell.bottom, cell.left : cell.right], atol=1e-5)
    first = min(first, len(grid) - 1)
    for index, sums, there in cells(Blender.find_first_tile(grid, first)):
        if index >= first:
            assert there.all()
            assert sums.tobytes() == whole[index].tobytes()


@given(grids(), st.integers(1, 9))
def test_weights_near_cuts_are_zero_and_shards_are_all_tiles(grid, of):
    for axis in (grid.vertical, grid.horizontal):
        for k in range(axis.count):
            begin, end = axis.span(k)
            weighted = np.flatnonzero(axis.weights(k)) + k * axis.stride
            assert k == 0 or weighted[0] - begin >= (axis.overlap - 2) // 4
            assert k == axis.count - 1 or end - 1 - weighted[-1] >= (axis.overlap - 2) // 4
    shards = [grid.shard(number, of) for number in range(of)]
    assert [tile for shard in shards for tile in shard] == list(range(len(grid)))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_the_last_tile_has_full_context_on_the_grid_of_windows():
    grid = Grid((900, 2500), 1024, 128, 224)
    assert [grid.window(index)[1::2] for index in range(len(grid))] == [(0, 1024), (896, 1920), (1568, 2500)]
    assert Grid((900, 2500), 1024, 128).window(2)[1::2] == (1476, 2500)


@pytest.mark.parametrize(
    ('tile', 'overlap', 'words'),
    [(64, 33, 'half a tile'), (64, -1, '0 to'), (100, 7, 'of 16')],
)
def test_what_no_grid_has(tile, overlap, words):
    with pytest.raises(ValueError, match=words):
        Grid((100, 100), tile, overlap)


def test_every_tile_has_a_default_overlap():
    for tile in range(16, 1200):
        grid = Grid((3000, 2000), tile, choose_overlap(tile))
        assert grid.overlap > min(128, tile // 2) - 16
    assert [choose_overlap(tile) for tile in (1024, 160, 1000)] == [128, 80, 120]
