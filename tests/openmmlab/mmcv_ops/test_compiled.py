"""Outputs and gradients of our operators equal those of mmcv's compiled operators, for all providers."""

from contextlib import contextmanager

import mmcv.ops
import numpy as np
import operator_calls as cases
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.kernels.native.library import load_library
from swin_backbone.openmmlab.mmcv_ops import ext, providers

try:
    from mmcv import _ext as compiled
except ImportError:
    compiled = ext
COMPILED = compiled.__name__ == 'mmcv._ext'
needs_compiled = pytest.mark.skipif(not COMPILED, reason='mmcv has no compiled operators here')
EXAMPLES = 30
TOLERANCE = dict(rtol=1e-4, atol=2e-5)


@contextmanager
def computed_by(who):
    """By the compiled library, or by torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, 'torchvision_takes', lambda *_: False)
        if who == 'torch':
            patch.setattr(providers, 'library_takes', lambda *_: False)
        yield


BOTH = [
    pytest.param(
        'library', marks=pytest.mark.skipif(load_library()[0] is None, reason='the compiled library is not built')
    ),
    'torch',
]


@pytest.mark.parametrize('by', BOTH)
@pytest.mark.parametrize('name', cases.CASES)
def test_each_operator_gives_what_mmcvs_gives(name, by):
    if by == 'library' and cases.CASES[name][1] not in (cases.roi_align, cases.nms):
        pytest.skip('the library has no such operator')
    with computed_by(by):
        equal_mmcvs(name)


def equal_mmcvs(name):
    got = cases.outputs(ext, name)
    if COMPILED:
        wanted = cases.outputs(compiled, name)
    else:
        with np.load(cases.FIGURES) as figures:
            wanted = [figures[f'{name}/{index}'] for index in range(len(got))]
    compare(got, wanted)


@needs_compiled
def test_the_stored_figures_are_those_of_the_compiled_operators():
    with np.load(cases.FIGURES) as figures:
        names = {key.rsplit('/', 1)[0] for key in figures}
        assert names == set(cases.CASES)
        for name in names:
            wanted = cases.outputs(compiled, name)
            compare([figures[f'{name}/{index}'] for index in range(len(wanted))], wanted)


def compare(got, wanted):
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, equal_nan=True, **TOLERANCE)


def both(case, seed, by='torch', **drawn):
    """Compare with mmcv's compiled operators, or with torch where mmcv has no compiled operators."""
    with computed_by(by), cases.operators_of(ext):
        ours = case(cases.rng_of(seed), **drawn)
    with computed_by('torch'), cases.operators_of(compiled):
        compare(ours, case(cases.rng_of(seed), **drawn))


SEEDS = st.integers(0, 10_000)
SIDES = st.tuples(st.integers(1, 12), st.integers(1, 12))


@pytest.mark.parametrize('by', BOTH if COMPILED else BOTH[:1])
@settings(max_examples=EXAMPLES)
@given(
    seed=SEEDS, number=st.integers(0, 6), size=SIDES, bins=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    ratio=st.integers(0, 3), aligned=st.booleans(), channels=st.integers(1, 6),
    scale=st.sampled_from([0.03125, 0.25, 1.0]),
)  # fmt: skip
def test_roi_align_of_any_shape(by, **drawn):
    both(cases.roi_align, by=by, **drawn)


@pytest.mark.parametrize('by', BOTH if COMPILED else BOTH[:1])
@settings(max_examples=EXAMPLES)
@given(
    seed=SEEDS, number=st.integers(0, 600), threshold=st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]),
    offset=st.integers(0, 1),
)  # fmt: skip
def test_nms_of_any_number(by, **drawn):
    both(cases.nms, by=by, **drawn)


@pytest.fixture
def _our_operators():
    with cases.operators_of(ext):
        yield


@pytest.mark.usefixtures('_our_operators')
def test_a_region_of_a_billion_pixels_is_refused_by_torch():
    """RoIAlign of the library has tests in tests/kernels/detection/test_regions.py."""
    with computed_by('torch'), pytest.raises(ValueError, match='rois: a region with more than 16777216 samples'):
        mmcv.ops.roi_align(torch.zeros(1, 1, 4, 4), torch.tensor([[0.0, 0, 0, 1e9, 1e9]]), 2)


@pytest.mark.usefixtures('_our_operators')
def test_the_maximum_of_roi_align_is_left_to_mmcv():
    with pytest.raises(NotImplementedError, match=r"pool_mode='max'.*MMCV=compiled make install"):
        mmcv.ops.roi_align(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5), 2, 1.0, 0, 'max')


@pytest.mark.usefixtures('_our_operators')
@pytest.mark.parametrize('by', BOTH)
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype, by):
    """Autocast may give boxes and scores of different dtypes."""
    x, rois = torch.rand(1, 4, 9, 9).to(dtype), torch.tensor([[0, 1.0, 1, 7, 6]], dtype=dtype)
    rng = cases.rng_of(0)
    boxes, scores = cases.boxes(rng, 50).to(dtype), cases.scores(rng, 50).to(dtype)
    with computed_by(by):
        exact = mmcv.ops.roi_align(x.float(), rois.float(), 2)
        assert torch.equal(mmcv.ops.roi_align(x, rois, 2), exact.to(dtype))
        for offset in (0, 1):
            exact = mmcv.ops.nms(boxes.float(), scores.float(), 0.5, offset)[1]
            assert torch.equal(mmcv.ops.nms(boxes, scores, 0.5, offset)[1], exact)
            assert torch.equal(mmcv.ops.nms(boxes.float(), scores, 0.5, offset)[1], exact)
