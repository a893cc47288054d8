"""Maps in channels_last memory through a whole model give equal results and checkpoints."""

import copy

import pytest
import torch
from helpers.openmmlab.breadth import PLACED, build, pictures_and_truth, predict, swapped

from swin_backbone import accelerate, mmcv_ops
from swin_backbone.openmmlab.layers import maps
from swin_backbone.openmmlab.layers.conv3x3 import Conv2d, Conv3x3, ConvTranspose2d

pytest.importorskip('mmdet')


def exchanged(model):
    return [one for one in model.modules() if type(one) in (Conv2d, Conv3x3, ConvTranspose2d)]


@pytest.mark.parametrize('family', ['Mask R-CNN', 'RetinaNet'])
def test_a_detector_predicts_the_same(family):
    cfg = swapped(PLACED[family])
    model, data = build(cfg), pictures_and_truth(cfg)
    before = predict(cfg, model, copy.deepcopy(data))
    accelerate(model)
    assert exchanged(model)
    assert not exchanged(model.backbone)  # the backbone packs the weights itself
    assert all(x.is_contiguous() for x in model.parameters())  # an optimizer may have seen their memory
    for x, y in zip(before, predict(cfg, model, data)):
        torch.testing.assert_close(x.pred_instances.bboxes, y.pred_instances.bboxes, rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(x.pred_instances.scores, y.pred_instances.scores, rtol=1e-3, atol=1e-4)


def test_what_was_not_tested_so_is_left_alone():
    class Mine(torch.nn.Module):
        def forward(self, x):
            return x.view(len(x), -1)

    cfg = swapped(PLACED['CenterNet'])
    model = build(cfg)
    maps.prepare_convolutions(model)
    assert not exchanged(model)
    assert predict(cfg, model, pictures_and_truth(cfg))
    for layer, last in ((torch.nn.ReLU(), True), (Mine(), False)):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), layer)
        maps.prepare_convolutions(model)
        assert bool(exchanged(model)) == last


def test_compiled_operators_that_misread_such_maps_get_none(monkeypatch):
    for compiled in (True, False):
        monkeypatch.setattr(maps, 'in_use', lambda compiled=compiled: 'compiled' if compiled else 'ours')
        for conv, last in ((None, True), (dict(type='DCNv2'), not compiled)):
            cfg = swapped(PLACED['RetinaNet'])
            cfg.model.neck.conv_cfg = conv
            model = build(cfg, initialise=False)
            maps.prepare_convolutions(model)
            assert bool(exchanged(model)) == last
    assert mmcv_ops.in_use()


@pytest.mark.usefixtures('one_process')
@pytest.mark.parametrize('first', ['wrap', 'accelerate'])
def test_gradients_in_distributed_training_are_not_permuted(first):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1))
    model = copy.deepcopy(plain)
    if first == 'accelerate':
        maps.prepare_convolutions(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    maps.prepare_convolutions(wrapped)
    for step in range(6):  # DistributedDataParallel builds its buckets again after the first step
        if step == 3:
            maps.restore_convolutions(wrapped)
        x = torch.randn(2, 8, 9, 9)
        for one in (plain, wrapped):
            one.zero_grad()
            one(x).square().sum().backward()
        for one, other in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-4)
