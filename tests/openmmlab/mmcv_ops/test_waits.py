"""On a GPU without torchvision's kernels, RoIAlign and NMS wait once for the GPU, for what depends on the values."""

import pytest
import torch
from helpers.kernels.waits import Device

from swin_backbone.openmmlab.mmcv_ops import providers
from swin_backbone.openmmlab.mmcv_ops.nms import nms
from swin_backbone.openmmlab.mmcv_ops.roi import roi_align_backward, roi_align_forward


@pytest.fixture(autouse=True)
def library_disabled(monkeypatch):
    for takes in ('library_takes', 'torchvision_takes'):
        monkeypatch.setattr(providers, takes, lambda *_: False)


def draw(number, side=200.0):
    boxes = torch.rand(number, 4) * side
    boxes[:, 2:] += boxes[:, :2]
    return boxes


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('number', [1, 192, 1000])
def test_nms(number, offset):
    boxes, scores = draw(number), torch.rand(number)
    wanted = nms(boxes, scores, 0.5, offset)
    with Device() as device:
        kept = nms(boxes, scores, 0.5, offset)
    assert torch.equal(kept, wanted)
    assert device.waits == {'cpu': 1}
    assert not kept.on_host


@pytest.mark.parametrize(('sampling_ratio', 'waits'), [(0, {'tolist': 1}), (2, {})])
def test_roi_align(sampling_ratio, waits):
    x = torch.rand(2, 3, 40, 50)
    rois = torch.cat([torch.randint(2, (30, 1)).float(), draw(30)], 1)

    def compute():
        output, gradient = torch.zeros(30, 3, 7, 7), torch.zeros_like(x)
        settings = 7, 7, 0.25, sampling_ratio, 1, True
        with Device() as forward:
            roi_align_forward(x, rois, output, None, None, *settings)
        with Device() as backward:
            roi_align_backward(output, rois, None, None, gradient, *settings)
        return forward.waits, backward.waits

    assert compute() == (waits, waits)


def test_the_stand_in_counts_each_kind_of_wait():
    x = torch.arange(6.0)
    reads = [lambda: x.sum().item(), lambda: bool(x[0]), x.tolist, x.cpu, lambda: x[x > 2], lambda: torch.equal(x, x)]
    for read in (*reads, x.nonzero, lambda: torch.bincount(x.long()), lambda: x.repeat_interleave(x.long())):
        with Device() as device:
            read()
        assert sum(device.waits.values()) == 1
    with Device() as device:
        copy = x.cpu()
        assert copy.tolist() == x.numpy().tolist()
    assert device.waits == {'cpu': 1, 'numpy': 1}
