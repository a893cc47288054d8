"""Deformable attention in the place of mmcv's, by `accelerate`."""

import copy

import pytest
import torch
from mmcv.ops import MultiScaleDeformableAttention
from torch import nn

from swin_backbone.acceleration import restore
from swin_backbone.kernels.native.availability import find_reason_against_dtype
from swin_backbone.openmmlab.layers import deformable_attention
from swin_backbone.openmmlab.layers.extension import replace_layers

pytestmark = pytest.mark.skipif(find_reason_against_dtype(torch.float32) is not None, reason='the library is not built')
SHAPES = torch.tensor([[9, 7], [5, 4]])


@pytest.fixture
def calls(monkeypatch):
    calls, compute = [], deformable_attention.deformable_attention
    monkeypatch.setattr(deformable_attention, 'deformable_attention', lambda *args: calls.append(1) or compute(*args))
    return calls


def make_layer(batch_first):
    torch.manual_seed(0)
    layer = MultiScaleDeformableAttention(32, 4, num_levels=2, num_points=3, batch_first=batch_first)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.eval()


def arguments_of(layer, sides, is_masked):
    batch, queries, tokens = 2, 13, int(SHAPES.prod(1).sum())
    query, position, value = (torch.randn(batch, n, 32) for n in (queries, queries, tokens))
    if not layer.batch_first:
        query, position, value = (x.transpose(0, 1) for x in (query, position, value))
    return query, dict(
        value=value,
        query_pos=position,
        key_padding_mask=torch.rand(batch, tokens) < 0.2 if is_masked else None,
        reference_points=torch.rand(batch, queries, 2, sides),
        spatial_shapes=SHAPES,
        level_start_index=torch.tensor([0, 63]),
    )


def results(layer, query, arguments):
    query = query.clone().requires_grad_()
    layer.zero_grad()
    y = layer(query, **arguments)
    (y * y.detach().sin()).sum().backward()
    return [y.detach(), query.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


@pytest.mark.parametrize('batch_first', [False, True])
@pytest.mark.parametrize(('sides', 'is_masked'), [(2, False), (4, True)])
def test_results_equal_those_of_mmcv(batch_first, sides, is_masked, calls):
    layer = make_layer(batch_first)
    query, arguments = arguments_of(layer, sides, is_masked)
    expected = results(layer, query, arguments)
    model = nn.Sequential(layer)
    replace_layers(model)
    for ours, truth in zip(results(layer, query, arguments), expected):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()) + 1e-6)
    assert calls == [1]
    restore(model)
    assert type(layer) is MultiScaleDeformableAttention


def test_autocast(calls):
    layer = make_layer(True)
    query, arguments = arguments_of(layer, 2, False)
    ours = copy.deepcopy(layer)
    replace_layers(nn.Sequential(ours))
    with torch.no_grad():
        expected = layer(query, **arguments)
        with torch.autocast('cpu', torch.bfloat16):
            torch.testing.assert_close(ours(query, **arguments), expected, rtol=0.1, atol=0.1)
    assert calls == [1]
