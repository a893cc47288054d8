"""Shares of parts add up to the whole, and the parts are computed as they are without being watched."""

import pytest
import torch
from torch import nn

from benchmarks.gpu.counts import count_flops
from benchmarks.parts import REST, backbone_shares, detector_shares
from swin_backbone import SwinBackbone
from swin_backbone.backends.native import Native, why_not_in
from swin_backbone.models.pyramid import SwinStage


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_the_parts_of_a_backbone_are_the_whole(dtype, monkeypatch):
    blocks, forward = [], SwinStage.forward
    by_operator = Native.block
    monkeypatch.setattr(Native, 'block', lambda *args: blocks.append(1) or by_operator(*args))
    model, x_BCHW = SwinBackbone(arch='nano').eval(), torch.randn(1, 3, 64, 64)
    shares = backbone_shares(model, x_BCHW, dtype, runs=2)
    stages = [f'blocks of stage {number}' for number in (1, 2, 3, 4)]
    assert set(shares) == {'patch embedding', 'patch merging', 'output norms', *stages, REST}
    with torch.no_grad():
        assert sum(share.flops for share in shares.values()) == count_flops(lambda: model(x_BCHW))
    for name, share in shares.items():
        assert share.seconds > 0
        assert (share.floor > 0) == (share.flops > 0) == (name not in ('output norms', REST))
    if why_not_in(dtype) is None:
        assert len(blocks) == 3 * 8  # the first run is not timed
    assert SwinStage.forward is forward


def test_the_parts_of_a_detector_are_the_whole():
    class Part(nn.Module):
        def forward(self, *_):
            sum(range(50000))

        predict = forward

    def detector():
        model = nn.Module()
        for part in ('backbone', 'neck', 'rpn_head', 'roi_head'):
            model.add_module(part, Part())
        return model

    models = {'one': detector(), 'other': detector()}
    calls = []

    def detect(name):
        model = models[name]
        model.neck(model.backbone())
        model.rpn_head.predict()
        model.roi_head.predict()
        calls.append(name)

    shares = detector_shares({'one': lambda: detect('one'), 'other': lambda: detect('other')}, models, rounds=3)
    assert calls == ['one', 'other'] * 4
    assert set(shares) == set(models)
    for parts in shares.values():
        assert list(parts) == ['backbone', 'neck', 'RPN', 'RoI heads', REST]
        assert all(share.seconds > 0 for share in parts.values())
    assert not any('forward' in vars(part) or 'predict' in vars(part) for part in models['one'].children())
