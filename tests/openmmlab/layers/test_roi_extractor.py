"""Regions of a pyramid equal mmdet's extractor, without rounding of boxes, and with support for bfloat16."""

import copy
from importlib import import_module

import pytest
import torch

from swin_backbone import accelerate, restore
from swin_backbone.openmmlab.mmcv_ops import ext

SETTINGS = dict(out_channels=8, featmap_strides=[4, 8, 16, 32])


def extractors(**layer):
    from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor

    import swin_backbone

    layer = dict(dict(type='RoIAlign', output_size=7, sampling_ratio=0), **layer)
    return [kind(layer, **SETTINGS) for kind in (SingleRoIExtractor, swin_backbone.SingleRoIExtractor)]


def pyramid(dtype=torch.float32, levels=4):
    shapes = [(2, 8, 200 // stride, 300 // stride) for stride in (4, 8, 16, 32)[:levels]]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def regions(number, sides=(190, 90)):
    first = torch.rand(number, 2) * 100
    return torch.cat([torch.randint(0, 2, (number, 1)), first, first + torch.rand(number, 2) * torch.tensor(sides)], 1)


@pytest.mark.parametrize('number', [0, 50])
@pytest.mark.parametrize('levels', [1, 4])
@pytest.mark.parametrize(
    ('scale_factor', 'layer'), [(None, {}), (1.3, dict(sampling_ratio=2, output_size=(3, 14), aligned=False))]
)
def test_equals_mmdets(number, levels, scale_factor, layer):
    maps, rois = pyramid(levels=levels), regions(number)
    theirs, ours = (extractor(maps, rois, scale_factor) for extractor in extractors(**layer))
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(theirs)
    expected, results = (
        torch.autograd.grad((y * weight).sum(), maps, allow_unused=True, materialize_grads=True) if y.requires_grad
        else (None,) for y in (theirs, ours)
    )  # fmt: skip
    if number:
        torch.testing.assert_close(results, expected)


def test_channels_last_maps_give_the_same_and_such_gradients():
    maps, rois = pyramid(), regions(20)
    last = [x.detach().contiguous(memory_format=torch.channels_last).requires_grad_() for x in maps]
    ours = extractors()[1]
    y, of_last = ours(maps, rois), ours(last, rois)
    torch.testing.assert_close(of_last, y)
    weight = torch.randn_like(y)
    grads = torch.autograd.grad((of_last * weight).sum(), last)
    torch.testing.assert_close(grads, torch.autograd.grad((y * weight).sum(), maps))
    assert all(grad.is_contiguous(memory_format=torch.channels_last) for grad in grads)


def test_of_bfloat16_maps_boxes_are_not_rounded(monkeypatch):
    # The extension supports bfloat16. A compiled mmcv may not.
    monkeypatch.setattr(import_module('mmcv.ops.roi_align'), 'ext_module', ext)
    theirs, ours = extractors()
    maps = [torch.randn(1, 8, 800 // stride, 1344 // stride).bfloat16() for stride in (4, 8, 16, 32)]
    wide = [x.float().requires_grad_() for x in maps]
    maps = [x.requires_grad_() for x in maps]
    rois = torch.tensor([[0, 1101.3, 3.0, 1330.7, 260.2]])
    exact = theirs(wide, rois)
    results = ours(maps, rois)
    assert results.dtype == torch.bfloat16
    torch.testing.assert_close(results.float(), exact, rtol=0.01, atol=0.01)
    weight = torch.randn_like(exact)
    grads = torch.autograd.grad((results * weight).sum(), maps, materialize_grads=True, allow_unused=True)
    expected = torch.autograd.grad((ours(wide, rois) * weight).sum(), wide, materialize_grads=True, allow_unused=True)
    for one, other in zip(grads, expected):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.02)
    assert (theirs(maps, rois).float() - exact).abs().max() > 0.1


def test_a_compiled_extractor_traces_nothing_of_the_library():
    from torch._dynamo.utils import counters

    (maps, rois), extractor = (pyramid(), regions(20)), extractors()[1]
    counters.clear()
    compiled = torch.compile(extractor, backend='eager')
    for number in (20, 30):
        rois = regions(number)
        torch.testing.assert_close(compiled(maps, rois), extractor(maps, rois))
    reasons = ' '.join(counters['graph_break'])
    assert 'align_by_level' in reasons
    assert 'ctypes' not in reasons


def test_a_maximum_is_mmcvs(monkeypatch):
    monkeypatch.setattr(import_module('mmcv.ops.roi_align'), 'ext_module', ext)
    _, ours = extractors(pool_mode='max', sampling_ratio=2)
    with pytest.raises(NotImplementedError, match=r"pool_mode='max'.*MMCV=compiled"):
        ours(pyramid(), regions(9))


def test_it_takes_the_place_of_mmdets_and_of_no_subclass():
    theirs, ours = extractors(sampling_ratio=2)
    kind = type(theirs)
    other = copy.deepcopy(theirs)
    other.__class__ = type('SingleRoIExtractor', (kind,), {})
    model = torch.nn.ModuleList([theirs, other])
    accelerate(model)
    assert type(theirs) is type(ours)
    assert type(other).__mro__[1] is kind
    restore(model)
    assert type(theirs) is kind
