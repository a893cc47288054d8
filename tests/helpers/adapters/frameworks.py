"""What every adapter promises: a backbone inside another framework is the backbone alone."""

import copy
import io
import os
from pathlib import Path
from unittest import mock

import pytest
import torch

from swin_backbone.backends.native import layers, why_not_in
from swin_backbone.compat import import_torchvision

MISSING = "{} is not installed: make install EXTRAS=peers, or pip install -e '.[peers]'"


def require(name):
    """A package, or a skip; beside a torchvision that was built for another torch too."""
    import_torchvision()
    return pytest.importorskip(name, reason=MISSING.format(name))


def original(name):
    """The folder of a repository that is no package, in the folder that ORIGINALS names, or a skip."""
    folder = Path(os.environ.get('ORIGINALS', 'no folder')) / name
    if not folder.is_dir():
        pytest.skip(f'it runs {name}, which is no package: ORIGINALS names a folder of clones (CONTRIBUTING.md)')
    return folder.resolve()


def assert_compiled(run, blocks):
    """`run()` computes as many blocks as it should, all of them by the compiled library where this is built."""
    with mock.patch.object(layers, 'block', wraps=layers.block) as computed, torch.no_grad():
        run()
    assert computed.call_count == (blocks if why_not_in(torch.float32) is None else 0)


def assert_equal_maps(outputs, expected):
    """To the bit."""
    assert len(outputs) == len(expected)
    for output, other in zip(outputs, expected):
        assert torch.equal(output, other)


def assert_survives(model, call, exact=True):
    """`copy.deepcopy`, `torch.save` with `torch.load`, and a state_dict in a new object give the same output.

    Args:
        call: from a model to a tensor.
        exact: to the bit. torch's convolutions, which heads have, round otherwise where memory is aligned otherwise.
    """

    def assert_same(other):
        if exact:
            assert torch.equal(call(other), expected)
        torch.testing.assert_close(call(other), expected)

    model.eval()
    expected = call(model)
    assert_same(copy.deepcopy(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=False))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(torch.load(file))
    assert_same(other)


def assert_compiles(model, *inputs, atol=1e-4):
    """`torch.compile` records the model, whole, and gives its output."""
    expected, output = model(*inputs), torch.compile(model, backend='eager', fullgraph=True)(*inputs)
    outputs, others = ([output], [expected]) if torch.is_tensor(expected) else (output, expected)
    for one, other in zip(outputs, others):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)


def train_a_step(model, loss_of):
    """A step of SGD; every parameter of the backbone's layers that can be trained gets a finite gradient.

    Args:
        loss_of: from the model to its loss.
    """
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    loss = loss_of(model)
    loss.backward()
    for name, parameter in model.named_parameters():
        if '.blocks.' in name and parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    optimizer.step()
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)
    return loss.item()


def give_torchvision_operators(monkeypatch):
    """RoIAlign and NMS of mmcv, where torchvision was built for another torch and has none."""
    import torchvision
    from mmcv.ops import nms, roi_align

    if torchvision.extension._has_ops():
        return

    def nms_by_mmcv(boxes, scores, iou_threshold):
        return nms(boxes, scores, float(iou_threshold))[1]

    def roi_align_by_mmcv(input, boxes, output_size, spatial_scale=1.0, sampling_ratio=-1, aligned=False):
        return roi_align(input, boxes, output_size, spatial_scale, max(sampling_ratio, 0), 'avg', aligned)

    from torchvision.models.detection import roi_heads
    from torchvision.ops import boxes, poolers

    monkeypatch.setattr(boxes, 'nms', nms_by_mmcv)
    monkeypatch.setattr(torchvision.ops, 'nms', nms_by_mmcv)
    monkeypatch.setattr(poolers, 'roi_align', roi_align_by_mmcv)
    monkeypatch.setattr(roi_heads, 'roi_align', roi_align_by_mmcv)
