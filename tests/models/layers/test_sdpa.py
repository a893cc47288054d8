"""Attention by torch's scaled_dot_product_attention never takes cuDNN's backend: cuDNN's backward can give NaN."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import reference
from helpers.versions import needs_torch
from torch import nn

from swin_backbone import SwinBackbone
from swin_backbone.models.layers import attention
from swin_backbone.models.windows import Windows

FLAGS = ('flash', 'mem_efficient', 'math', 'cudnn')


def flags():
    return {name: getattr(torch.backends.cuda, f'{name}_sdp_enabled')() for name in FLAGS}


@pytest.fixture
def seen(monkeypatch):
    """Return the enabled backends at calls of SDPA. Every device takes SDPA here, like a GPU."""
    monkeypatch.setattr(attention, 'MATMUL_ATTENTION_DEVICES', set())
    calls, original = [], F.scaled_dot_product_attention

    def attend(*arguments, **others):
        calls.append(flags())
        return original(*arguments, **others)

    monkeypatch.setattr(F, 'scaled_dot_product_attention', attend)
    return calls


@needs_torch('2.5', 'SDPA by cuDNN as a default')
@pytest.mark.parametrize('training', [False, True])
def test_it_is_left_out_and_the_caller_keeps_it(seen, training):
    model = SwinBackbone(arch='nano', backend='torch').train(training)
    before = flags()
    assert before['cudnn']
    with torch.set_grad_enabled(training):
        model(torch.randn(1, 3, 60, 70))
    assert len(seen) >= 8
    assert all(call == {**before, 'cudnn': False} for call in seen)
    assert flags() == before


@torch.no_grad()
def test_it_computes_what_torch_operations_compute(seen):
    model, x = SwinBackbone(arch='nano', backend='torch').eval(), torch.randn(2, 3, 60, 70)
    for y, expected in zip(model(x), reference.maps(model, x)):
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert seen


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device; the fault is of H100 and H200')
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_windows_of_8x8_with_a_very_low_log_sum_exp(dtype):
    """The case of pytorch issue 196678: every logit is about -120, windows have a mask, and N % 128 is 64."""
    heads, d, N = 2, 32, 64
    qkv_T3hd = torch.randn(4 * N, 3, heads, d, device='cuda', dtype=dtype) * 0.1
    qkv_T3hd[:, 0, :, 0], qkv_T3hd[:, 1, :, 0] = 1.0, -120 * math.sqrt(d)
    qkv_T3C = qkv_T3hd.flatten(1).requires_grad_()
    bias_hNN = torch.zeros(heads, N, N, device='cuda', dtype=dtype)
    x_BHWC, windows = qkv_T3C.view(1, 16, 16, -1), Windows(16, 16, (8, 8), (4, 4))
    layer = SimpleNamespace(
        project=lambda x: x,
        position_bias=lambda size: bias_hNN,
        scale=d**-0.5,
        attn_drop_rate=0.0,
        training=False,
        backend='torch',
        proj=nn.Identity(),
        proj_drop=nn.Identity(),
    )
    out_TC = attention.BaseAttention.forward(layer, x_BHWC, windows)
    (grad_T3C,) = torch.autograd.grad(out_TC, qkv_T3C, torch.randn_like(out_TC))
    assert out_TC.isfinite().all()
    assert grad_T3C.isfinite().all()
