"""SwinV2Backbone: the position bias, half precision, torch.compile, export."""

import copy

import pytest
import torch
from test_swin_v2 import away_from_zero, nano

from swin_backbone.models.layers.swin_v2_block import WindowAttentionV2


def fresh(backbone):
    """Return a copy of the backbone, without caches."""
    return copy.deepcopy(backbone)


def step(backbone):
    optimizer = torch.optim.SGD(backbone.parameters(), lr=10.0)
    sum(output.square().sum() for output in backbone(torch.randn(1, 3, 40, 40))).backward()
    optimizer.step()


def load(backbone):
    other = nano()
    torch.nn.init.normal_(other.stages[0].blocks[0].attn.w_msa.cpb_mlp[2].weight)
    backbone.load_state_dict(other.state_dict())


def assign(backbone):
    backbone.load_state_dict(away_from_zero(nano()).state_dict(), assign=True)


def swap_averages(backbone):
    """Write like mmengine's EMAHook before a validation: without version counters."""
    for parameter in backbone.parameters():
        parameter.data.copy_(torch.randn_like(parameter) * 0.1)


def in_place(backbone):
    with torch.no_grad():
        backbone.stages[1].blocks[0].attn.w_msa.cpb_mlp[0].bias.add_(1.0)


@pytest.mark.parametrize('change', [step, load, assign, swap_averages, in_place, torch.nn.Module.double])
def test_it_is_right_again_after_the_weights_have_changed(change):
    backbone = away_from_zero(nano()).eval()
    x = torch.randn(1, 3, 40, 50)
    with torch.no_grad():
        before = backbone(x)
    change(backbone)
    x = x.to(next(backbone.parameters()).dtype)
    with torch.no_grad():
        after, expected = backbone(x), fresh(backbone)(x)
    assert all(torch.equal(a, b) for a, b in zip(after, expected))
    assert not torch.equal(after[1], before[1].to(after[1].dtype))


def test_half_and_back():
    backbone = away_from_zero(nano()).eval()
    msa = backbone.stages[0].blocks[0].attn.w_msa
    with torch.no_grad():
        full = msa.position_bias((8, 8))
        backbone.half()
        half = msa.position_bias((8, 8))
        assert half.dtype == torch.float16
        torch.testing.assert_close(half.float(), full, rtol=2e-3, atol=2e-3)
        backbone.float()
        assert msa.position_bias((8, 8)).dtype == torch.float32


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_is_near_float32(dtype):
    backbone = away_from_zero(nano()).eval()
    x = torch.randn(1, 3, 100, 130)
    with torch.no_grad():
        expected = backbone(x)
        with torch.autocast('cpu', dtype):
            outputs = backbone(x)
    for output, reference in zip(outputs, expected):
        assert (output - reference).abs().mean() < (0.05 if dtype == torch.bfloat16 else 0.01)


@torch.no_grad()
def test_a_model_in_half_precision_is_near_float32():
    backbone, x = away_from_zero(nano()).eval(), torch.randn(1, 3, 70, 90)
    expected = backbone(x)
    for output, reference in zip(backbone.half()(x.half()), expected):
        assert output.dtype == torch.float16
        assert (output - reference).abs().max() < 0.05


@pytest.mark.parametrize('with_cp', [False, True])
def test_nothing_overflows_in_float16(with_cp):
    """Squares of queries and keys overflow float16.

    The scale is the largest. Maps have padding, in forward and backward.
    """
    backbone = away_from_zero(nano(with_cp=with_cp)).train()
    for module in backbone.modules():
        if isinstance(module, WindowAttentionV2):
            torch.nn.init.normal_(module.qkv.weight[: 2 * module.qkv.in_features].data, std=300.0)
            torch.nn.init.constant_(module.logit_scale, 9.0)
    with torch.autocast('cpu', torch.float16):
        outputs = backbone(torch.randn(1, 3, 100, 90))
    assert all(output.isfinite().all() for output in outputs)
    sum(output.float().square().mean() for output in outputs).backward()
    assert all(parameter.grad.isfinite().all() for parameter in backbone.parameters())


@pytest.mark.parametrize('grad', [False, True])
def test_compiles_without_a_graph_break(grad):
    backbone = away_from_zero(nano(depths=(1, 2), num_heads=(2, 4), out_indices=(0, 1))).eval()
    x = torch.randn(1, 3, 40, 60)
    with torch.set_grad_enabled(grad):
        outputs, expected = torch.compile(backbone, fullgraph=True, backend='aot_eager')(x), backbone(x)
    for output, reference in zip(outputs, expected):
        torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
    if grad:
        parameters = [parameter for name, parameter in backbone.named_parameters()]
        gradients = [torch.autograd.grad(sum(o.sin().mean() for o in maps), parameters) for maps in (outputs, expected)]
        for gradient, reference in zip(*gradients):
            torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-5)
    torch._dynamo.reset()


def test_exports():
    backbone = away_from_zero(nano(depths=(1, 2), num_heads=(2, 4), out_indices=(0, 1))).eval()
    x = torch.randn(1, 3, 40, 60)
    exported = torch.export.export(backbone, (x,))
    for output, reference in zip(exported.module()(x), backbone(x)):
        torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
