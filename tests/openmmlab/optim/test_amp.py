"""Mixed precision on a CPU: the Swin in bfloat16, all behind it in float32."""

import pytest
import torch
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from swin_backbone import SwinBackbone
from swin_backbone.openmmlab.optim.amp import CpuAmpOptimWrapper


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = SwinBackbone(arch='nano', drop_path_rate=0.0)
        self.head = nn.Linear(256, 2)

    def forward(self, x):
        maps = self.backbone(x)
        assert not torch.is_autocast_enabled('cpu')
        return maps, self.head(maps[-1].mean((2, 3)))


def wrapper(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return OPTIM_WRAPPERS.build(dict(type='CpuAmpOptimWrapper', optimizer=optimizer))


def test_the_backbone_computes_in_bfloat16_and_trains():
    model, x = Model().train(), torch.randn(1, 3, 64, 64)
    optim_wrapper, plain = wrapper(model), model(x)[0]
    assert isinstance(optim_wrapper, CpuAmpOptimWrapper)
    with torch.autocast('cpu', torch.bfloat16):
        expected = model.backbone(x)
    with optim_wrapper.optim_context(model):
        maps, scores = model(x)
    for y, e, p in zip(maps, expected, plain):
        assert y.dtype == torch.float32
        assert torch.equal(y, e.float())
        assert not torch.equal(y, p)
    optim_wrapper.update_params(scores.sum())
    assert torch.equal(model(x)[0][0], model.backbone(x)[0])  # outside it is in float32 again, with no hook left
    assert not model.backbone._forward_hooks
    assert not torch.equal(model(x)[0][0], plain[0])


def test_a_forward_that_fails_leaves_autocast():
    model = Model()
    with pytest.raises(ValueError, match='4'), wrapper(model).optim_context(model):
        model(torch.randn(1, 4, 64, 64))
    assert not torch.is_autocast_enabled('cpu')
