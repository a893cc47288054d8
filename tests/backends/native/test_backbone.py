"""Backbones take the compiled operators."""

import pytest
import torch
from helpers.backends.native_blocks import rms
from torch import nn

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.backends.native import layers
from swin_backbone.backends.native.availability import why_not_in


def backbones():
    return [
        SwinBackbone(arch='nano', window_size=(7, 7, (9, 4), 7), drop_path_rate=0.1).eval(),
        SwinV2Backbone(arch='nano', window_size=8, drop_path_rate=0.1).eval(),
    ]


def step(model, x):
    """Return gradients of all weights, with equal random numbers at every call."""
    model.zero_grad()
    torch.manual_seed(3)
    torch.autograd.backward([y.float().sin().mean() for y in model(x)])
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def by_torch(run, model, x):
    """Return `run(model, x)` without the operators."""
    model.backend = 'torch'
    try:
        return run(model, x)
    finally:
        model.backend = 'auto'


def forward(model, x):
    return model(x)


@pytest.fixture
def calls(monkeypatch):
    """How often blocks were computed by the operator."""
    counted, block = [], layers.block
    monkeypatch.setattr(layers, 'block', lambda *args: counted.append(1) or block(*args))
    return counted


@pytest.mark.parametrize('index', [0, 1])
@torch.no_grad()
def test_every_block_of_a_forward_without_gradients(index, calls):
    model, x = backbones()[index], torch.randn(2, 3, 70, 90)
    for ours, truth in zip(model(x), by_torch(forward, model, x)):
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, truth, atol=3e-5, rtol=0)
    assert len(calls) == 8


@pytest.mark.parametrize('arguments', [dict(), dict(with_cp=True)])
@pytest.mark.parametrize('index', [0, 1])
def test_every_block_of_a_training_step(index, arguments, calls):
    make = (SwinBackbone, SwinV2Backbone)[index]
    model = make(arch='nano', window_size=7 + index, drop_path_rate=0.1, **arguments).train()
    x = torch.randn(2, 3, 70, 90)
    truth, ours = by_torch(step, model, x), step(model, x)
    assert len(calls) == 8
    assert ours.keys() == truth.keys()
    for name, gradient in truth.items():
        assert rms(ours[name] - gradient) < 1e-5 * (1e-4 + rms(gradient)) + 1e-7, name


@pytest.mark.usefixtures('_bf16')
def test_a_training_step_under_autocast_is_nearer_to_float32(calls):
    model, x = SwinBackbone(arch='nano', drop_path_rate=0.0).train(), torch.randn(2, 3, 120, 130)
    truth = by_torch(step, model, x)
    with torch.autocast('cpu', torch.bfloat16):
        today = by_torch(step, model, x)
        ours = step(model, x)
    assert len(calls) == 8
    errors = [sum(rms(g[name] - truth[name]) / rms(truth[name]) for name in truth) for g in (ours, today)]
    assert errors[0] < errors[1]


def test_a_block_keeps_its_map_alone_for_backward():
    block, x_BHWC = SwinBackbone(arch='nano').stages[0].blocks[0].train(), torch.randn(1, 56, 56, 32)
    kept = bytes_kept(nn.Sequential(nn.Identity(), block), x_BHWC.requires_grad_(), torch.float32)
    assert kept <= 49 * 49 * (block.attn.w_msa.num_heads * 4 + 8)  # the position bias from the table, and the index


def test_no_native_block_for_float64_dropout_or_other_backends(calls):
    x = torch.randn(1, 3, 64, 64)
    SwinBackbone(arch='nano', drop_rate=0.1).train()(x)
    with torch.no_grad():
        backbones()[0].double()(x.double())
        SwinBackbone(arch='nano', backend='torch').eval()(x)
        SwinBackbone(arch='nano', act_cfg=dict(type='ReLU')).eval()(x)
        with torch.backends.mkldnn.flags(enabled=False):
            backbones()[0](x)
    assert not calls


@pytest.mark.usefixtures('_bf16')
@torch.no_grad()
def test_autocast_computes_in_bfloat16_and_gives_float32(calls):
    model, x = backbones()[0], torch.randn(1, 3, 70, 90)
    truth = by_torch(forward, model, x)
    with torch.autocast('cpu', torch.bfloat16):
        ours, today = model(x), by_torch(forward, model, x)
    assert len(calls) == 8
    for a, b, t in zip(ours, today, truth):
        assert a.dtype == torch.float32
        assert (a - t).pow(2).mean() < (b - t).pow(2).mean()


@torch.no_grad()
def test_autocast_to_float16_computes_in_float32(calls):
    model, x = backbones()[0], torch.randn(1, 3, 70, 90)
    with torch.autocast('cpu', torch.float16):
        found = model(x)
    assert len(calls) == 8
    assert all(map(torch.equal, found, model(x)))


def test_a_dtype_without_products_has_a_reason():
    assert why_not_in(torch.float64).endswith('not torch.float64.')
