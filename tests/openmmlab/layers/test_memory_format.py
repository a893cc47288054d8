"""Maps in channels_last memory through a whole model give equal results and checkpoints."""

import copy

import pytest
import torch
from helpers.kernels.errors import relative_error
from helpers.openmmlab.breadth import PLACED, build, pictures_and_truth, predict, swapped
from mmengine.registry import MODELS

from swin_backbone import accelerate, restore
from swin_backbone.openmmlab import mmcv_ops
from swin_backbone.openmmlab.layers import memory_format
from swin_backbone.openmmlab.layers.conv3x3 import Conv2d, Conv3x3, ConvTranspose2d


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
    memory_format.prepare_convolutions(model)
    assert not exchanged(model)
    assert predict(cfg, model, pictures_and_truth(cfg))
    for layer, last in ((torch.nn.ReLU(), True), (Mine(), False)):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), layer)
        memory_format.prepare_convolutions(model)
        assert bool(exchanged(model)) == last


def test_compiled_operators_that_misread_such_maps_get_none(monkeypatch):
    for compiled in (True, False):
        monkeypatch.setattr(memory_format, 'name_provider', lambda name='compiled' if compiled else 'ours': name)
        for conv, last in ((None, True), (dict(type='DCNv2'), not compiled)):
            cfg = swapped(PLACED['RetinaNet'])
            cfg.model.neck.conv_cfg = conv
            model = build(cfg, initialise=False)
            memory_format.prepare_convolutions(model)
            assert bool(exchanged(model)) == last
    assert mmcv_ops.name_provider()


@pytest.mark.usefixtures('one_process')
@pytest.mark.parametrize('first', ['wrap', 'accelerate'])
def test_a_training_goes_on_through_accelerate_and_restore(first):
    """A fused optimizer and DistributedDataParallel have seen the memory of the parameters."""
    from mmdet.models.necks import FPN

    arguments = dict(depths=(1, 1), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1), window_size=4)
    swin = MODELS.build(dict(type='mmdet.SwinTransformer', embed_dims=16, drop_path_rate=0.0, **arguments))
    plain = torch.nn.Sequential(swin, FPN([16, 32], 8, 2))
    model = copy.deepcopy(plain)
    if first == 'accelerate':
        accelerate(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizers = [torch.optim.AdamW(one.parameters(), 1e-2, eps=1e-3, fused=True) for one in (plain, model)]
    memory = [(one.data_ptr(), one.stride()) for one in model.parameters()]
    for step in range(6):  # DistributedDataParallel builds its buckets again after the first step
        if step == 2:
            accelerate(wrapped.module)
            assert exchanged(model)
        if step == 4:
            restore(wrapped.module)
            assert not exchanged(model)
        x = torch.randn(2, 3, 32, 40)
        for one, optimizer in zip((plain, wrapped), optimizers):
            optimizer.zero_grad()
            sum((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() for y in one(x)).backward()
            optimizer.step()
        assert memory == [(one.data_ptr(), one.stride()) for one in model.parameters()]
        for tensors in zip(*([p.grad for p in one.parameters()] for one in (model, plain))):
            assert relative_error(*([one] for one in tensors)) < 1e-3
    assert relative_error(list(model.parameters()), list(plain.parameters())) < 1e-4
