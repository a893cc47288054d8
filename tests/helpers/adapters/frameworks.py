"""Checks for all adapters: a backbone inside a framework computes like the backbone alone."""

import copy
import io
import os
from pathlib import Path

import pytest
import torch

from helpers.kernels import count_blocks
from swin_backbone.compat import import_torchvision
from swin_backbone.kernels.native.availability import find_reason_against_dtype

MISSING = "{} is not installed: make install EXTRAS=peers, or pip install -e '.[peers]'"


def require(name):
    """Import a package, or skip the test. The torchvision may be built for a different torch."""
    import_torchvision()
    return pytest.importorskip(name, reason=MISSING.format(name))


def original(name):
    """Return the clone of a repository in the folder ORIGINALS, or skip the test."""
    folder = Path(os.environ.get('ORIGINALS', 'no folder')) / name
    if not folder.is_dir():
        pytest.skip(f'it runs {name}, which is no package: ORIGINALS names a folder of clones (CONTRIBUTING.md)')
    return folder.resolve()


def assert_compiled(run, blocks):
    """Check the number of blocks that `run()` computes with the compiled library. Without a library: 0."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        counted = count_blocks(patch)
        run()
    assert len(counted) == (0 if find_reason_against_dtype(torch.float32) else blocks)


def assert_equal_maps(outputs, expected):
    """Compare maps bit for bit."""
    assert len(outputs) == len(expected)
    for output, other in zip(outputs, expected):
        assert torch.equal(output, other)


def assert_survives(model, call):
    """Compare the output `call(model)` after `copy.deepcopy`, `torch.save` with `torch.load`, and `load_state_dict`."""
    expected = call(model.eval())
    torch.save(model, model_file := io.BytesIO())
    torch.save(model.state_dict(), state_file := io.BytesIO())
    model_file.seek(0)
    state_file.seek(0)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(torch.load(state_file))
    for twin in (copy.deepcopy(model), torch.load(model_file, weights_only=False), other):
        assert torch.equal(call(twin), expected)


def assert_compiles(model, *inputs, atol=1e-4):
    """Check that `torch.compile` records the whole model. Compare the outputs."""
    expected, output = model(*inputs), torch.compile(model, backend='eager', fullgraph=True)(*inputs)
    outputs, others = ([output], [expected]) if torch.is_tensor(expected) else (output, expected)
    for one, other in zip(outputs, others):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)


def train_a_step(model, loss_of):
    """Train a step with SGD. Check that all trainable parameters of blocks get finite gradients.

    Args:
        loss_of: function from the model to the loss.
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
    """Replace missing RoIAlign and NMS of torchvision with mmcv's operators."""
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
