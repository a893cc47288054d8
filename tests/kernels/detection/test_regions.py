"""RoIAlign and NMS of the library: layouts, dtypes, threads, numbers that are not finite, wrong arguments.

tests/openmmlab/mmcv_ops compare with mmcv's operators, csrc/tests/unit.cpp with plain loops for each instruction set.
"""

import math

import pytest
import torch

from swin_backbone.kernels.detection import regions
from swin_backbone.kernels.native.library import load_library
from swin_backbone.openmmlab.mmcv_ops.roi import Pooling

POOLING = Pooling(bins=(7, 5), scale=0.25, sampling_ratio=0, aligned=True)


def some_rois(number=20, images=2, side=100.0, seed=0):
    corners = torch.rand(number, 2, 2, generator=torch.Generator().manual_seed(seed)) * side
    image = torch.arange(number)[:, None] % images
    return torch.cat([image, corners.amin(1), corners.amax(1)], 1).float()


def pool(maps, rois, **changed):
    pooling = POOLING._replace(**changed)
    out = torch.full((len(rois), maps.shape[1], *pooling.bins), math.nan, dtype=maps.dtype)
    regions.roi_align(maps, rois, out, pooling)
    return out


def spread(grad, rois, like, **changed):
    grad_maps = torch.zeros_like(like)  # in its strides
    regions.add_roi_align_gradient(grad, rois, grad_maps, POOLING._replace(**changed))
    return grad_maps


@pytest.mark.parametrize('channels', [3, 70])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('changed', [{}, dict(bins=(3, 40), aligned=False, sampling_ratio=2)])
def test_channels_last_maps_give_the_same(channels, dtype, changed):
    maps, rois = torch.randn(2, channels, 23, 29).to(dtype), some_rois()
    last = maps.contiguous(memory_format=torch.channels_last)
    tolerance = dict(rtol=1e-2, atol=1e-2) if dtype is torch.bfloat16 else dict(rtol=1e-4, atol=1e-5)
    out = pool(maps, rois, **changed)
    torch.testing.assert_close(pool(last, rois, **changed), out, **tolerance)
    grad = torch.randn_like(out)
    results, expected = (spread(grad, rois, like, **changed) for like in (last, maps))
    assert results.stride() == last.stride()
    torch.testing.assert_close(results, expected, **tolerance)


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
def test_maps_are_read_where_they_are(layout, monkeypatch):
    """The library gets the address of the maps, without a copy."""
    maps, rois, seen = torch.randn(2, 8, 9, 9).to(memory_format=layout), some_rois(), []
    library = load_library()[0]
    monkeypatch.setattr(library, 'roi_align_forward', lambda of, first, *more: seen.append(first))
    pool(maps, rois)
    assert seen == [maps.data_ptr()]


def test_bfloat16_is_summed_in_float32():
    maps, rois = torch.randn(2, 20, 30, 40).bfloat16(), some_rois()
    out = pool(maps, rois)
    assert torch.equal(out, pool(maps.float(), rois).bfloat16())
    grad = torch.randn_like(out)
    results, expected = (spread(g, rois, torch.empty(maps.shape)) for g in (grad, grad.float()))
    assert torch.equal(results, expected)
    assert torch.equal(spread(grad, rois, maps), expected.bfloat16())


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
def test_any_number_of_threads_gives_the_same_bits(layout):
    maps, rois, results = torch.randn(2, 37, 30, 40).to(memory_format=layout), some_rois(300), []
    for number in (1, 2, 5):
        torch.set_num_threads(number)
        out = pool(maps, rois)
        boxes = regions.keep_boxes(rois[:, 1:], torch.arange(300), 0.3, 0)
        results.append((out, spread(out.sin(), rois, maps), boxes))
    for one, other in zip(results[0] * 2, (*results[1], *results[2])):
        assert torch.equal(one, other)


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_number_that_is_not_finite_reaches_its_bins_alone(layout, value):
    maps = torch.zeros(1, 3, 30, 30)
    rois = torch.tensor([[0, 0.0, 0, 116, 116]])
    maps[0, 1, 14, 14] = value
    hit = ~pool(maps.to(memory_format=layout), rois)[0].isfinite()
    assert hit.nonzero().tolist() == [[1, 3, 2]]
    grad = torch.zeros(1, 3, *POOLING.bins)
    grad[0, 1, 3, 2] = value
    touched = ~spread(grad, rois, maps.to(memory_format=layout))[0].isfinite()
    rows, columns = touched[1].any(1).nonzero()[:, 0].tolist(), touched[1].any(0).nonzero()[:, 0].tolist()
    assert touched.sum() == len(rows) * len(columns) > 0
    assert rows == list(range(12, 17))
    assert columns == list(range(11, 18))


BIG = 3e38


@pytest.mark.parametrize('ratio', [0, 2, 1024])
@pytest.mark.parametrize('aligned', [False, True])
def test_a_region_of_any_numbers_ends(ratio, aligned):
    maps = torch.rand(1, 2, 6, 7) + 1
    values = (-BIG, -1e9, -5.0, 0.0, 3.0, 1e9, BIG, math.inf, -math.inf, math.nan)
    boxes = [[0, x1, 0, x2, 20] for x1 in values for x2 in values if not (aligned and x2 < x1)]
    rois = torch.tensor([*boxes, *([i, a, c, b, d] for i, c, a, d, b in boxes)])
    bins = dict(bins=(2, 3), sampling_ratio=ratio, aligned=aligned, scale=1.0)
    out = pool(maps, rois, **bins)
    without = ~rois.isfinite().all(1) if aligned else rois.isnan().any(1)  # mmcv makes short regions a pixel long
    assert not out[without].any()
    assert out.isfinite().all()
    assert (maps.amax() >= out).all()
    assert spread(torch.ones_like(out), rois, maps, **bins).isfinite().all()


def test_a_large_region_is_the_mean_of_its_samples():
    """Samples far outside of the map are 0, and the library does not visit every sample."""
    maps = torch.ones(1, 1, 10, 10)
    rois = torch.tensor([[0, -5000.0, -5000.0, 5000.0, 5000.0]])
    out = pool(maps, rois, bins=(1, 1), scale=1.0)
    assert out.item() == pytest.approx((12 / 10000) ** 2)


@pytest.mark.parametrize('shape', [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 4, 4)])
def test_nothing_of_anything(shape):
    maps, rois = torch.rand(shape), torch.zeros(0, 5)
    assert pool(maps, rois).shape == (0, shape[1], 7, 5)
    assert not spread(torch.zeros(0, shape[1], 7, 5), rois, maps).any()
    if shape[0]:
        assert pool(maps, torch.zeros(2, 5)).shape == (2, shape[1], 7, 5)
    assert regions.keep_boxes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), 0.5, 0).shape == (0,)


@pytest.mark.parametrize(
    ('changed', 'message'),
    [
        (dict(rois=torch.zeros(2, 4)), r'takes rois of \[2, 5\], torch.float32 in memory'),
        (dict(rois=torch.tensor([[2.0, 0, 0, 1, 1]])), "a region's image must be from 0 to 1, got 2 of region 0"),
        (dict(rois=torch.tensor([[0.0, 0, 0, 1, 1], [0, 5, 0, 1, 1]])), 'a region ends before it begins.* region 1'),
        (dict(bins=(7, 5000)), 'bins across must be from 1 to 4096, got 5000'),
    ],
)
def test_wrong_arguments_are_errors(changed, message):
    right = dict(maps=torch.zeros(2, 3, 4, 4), rois=some_rois(4, side=10.0))
    pool(**right)
    with pytest.raises(ValueError, match=message):
        pool(**{**right, **changed})


def test_indices_are_of_boxes():
    with pytest.raises(ValueError, match='an index in order must be from 0 to 1, got 2'):
        regions.keep_boxes(torch.zeros(2, 4), torch.tensor([0, 2]), 0.5, 0)
