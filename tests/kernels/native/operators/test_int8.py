"""Products in eight bits: a literal reference, and the error model of docs/explanation/eight_bits.md."""

import copy
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import reference
from helpers.models.blocks import cases, make_block, rms
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone import SwinBackbone, SwinV2Backbone, accelerate, restore
from swin_backbone.kernels.foreign.accelerate import set_precision
from swin_backbone.kernels.native.library import load_library
from swin_backbone.models.layers import PatchEmbed, SwinBlock

LEVELS, MOST = 254, 127  # steps between the least and the largest number of a token, and of a weight's numbers


def token_step(x):
    """Return the step and the least number of each token; zero is always within the range."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    return (high - low) / LEVELS, low


def linear(x, weight, bias=None):
    """Multiply whole numbers, see csrc/swin.h. The small network of Swin V2's position bias is no product of tokens."""
    if x.dim() == 2:
        return F.linear(x, weight, bias)
    x = x.bfloat16().to(x.dtype) if load_library()[0].has_bf16_gemm else x
    (step, low), step_of_weight = token_step(x), weight.abs().amax(1) / MOST
    step, step_of_weight = step.clamp(min=1e-36), step_of_weight.clamp(min=1e-36)
    zero = (-low / step).round()
    whole = (x / step + zero).round() - zero
    y = F.linear(whole, (weight / step_of_weight[:, None]).round()) * step * step_of_weight
    return y if bias is None else y + bias


@contextmanager
def products_by(function):
    """Let `function` compute the linear layers of the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, 'F', SimpleNamespace(**{**vars(F), 'linear': function}))
        yield


@torch.no_grad()
def by_library(module, x):
    set_precision(module, 'int8')
    return module(x)


def expected_error(block, x):
    """Return the expected root mean square error of a block, by the steps of docs/explanation/eight_bits.md."""
    seen = []

    def record(x, weight, bias=None):
        y = F.linear(x, weight, bias)
        seen.extend([(x, weight, y)] if x.dim() > 2 else [])
        return y

    with products_by(record), torch.no_grad():
        reference.block(block, x)
        own, (_, gain_proj, gain_fc1, gain_fc2) = zip(*(own_variance(x, weight) for x, weight, _ in seen))
        (*_, qkv), (*_, proj), _, (*_, fc2) = seen
        q, k, v = qkv.unflatten(-1, (3, block.attn.w_msa.num_heads, -1)).movedim(-3, 0)
        of_logits = slope_of_logits(block.attn.w_msa, q, k) * own[0]
        of_logits = of_logits.nan_to_num(0).clamp(max=2).mean()  # keys of padding have no length, and no error
        attention = own[1] + gain_proj * (own[0].mean() + of_logits * v.square().mean())
        if hasattr(block.attn.w_msa, 'logit_scale'):
            attention = attention * norm_gain(proj, block.norm1)
            mlp = own[3] + gain_fc2 * (own[2] + gain_fc1 * attention)
            total = attention + mlp * norm_gain(fc2, block.norm2)
            after = x + reference.layer_norm(proj, block.norm1) + reference.layer_norm(fc2, block.norm2)
            total = total if block.norm3 is None else total * norm_gain(after, block.norm3)
        else:
            normed = attention * norm_gain(x + proj, block.norm2)
            total = attention + own[3] + gain_fc2 * (own[2] + gain_fc1 * normed)
    return total.mean().sqrt().item()


def own_variance(x, weight):
    """Return the variance of a product from rounding, for each token, and the gain of an error of its input."""
    of_tokens = token_step(x)[0].square() * weight.square().sum(1).mean()
    of_weight = x.square().sum(-1, keepdim=True) * (weight.abs().amax(1) / MOST).square().mean()
    return (of_tokens + of_weight) / 12, weight.square().sum(1).mean()


def norm_gain(x, norm):
    """Return the factor of a variance by a norm, for each token."""
    return norm.weight.square().mean() / (x.var(-1, correction=0, keepdim=True) + norm.eps)


def slope_of_logits(w_msa, q, k):
    """Return the factor from the variance of queries and keys to that of logits, for each token and head."""
    if not hasattr(w_msa, 'logit_scale'):
        return w_msa.scale**2 * (q.square().sum(-1) + k.square().sum(-1))
    scale_h = w_msa.logit_scale.clamp(max=math.log(100)).exp().flatten()
    return scale_h.square() * (1 / q.square().sum(-1) + 1 / k.square().sum(-1))


@settings(max_examples=40, deadline=None)
@given(cases(), st.booleans())
def test_a_block_is_the_literal_one_with_the_error_of_the_model(case, has_outliers):
    block, x = case
    if has_outliers:  # in a channel of the map, and in a channel of each weight
        x[..., x.shape[-1] // 2] *= 100
        for name, parameter in block.named_parameters():
            if name.endswith('weight') and parameter.dim() == 2 and 'cpb' not in name:
                parameter.data[:, 3] *= 100
    double, x_double = copy.deepcopy(block).double(), x.double()
    with torch.no_grad():
        truth = reference.block(double, x_double)
        with products_by(linear):
            literal = reference.block(double, x_double)
    ours = by_library(block, x)
    # A rounding of bfloat16 before the products moves some numbers to the next step.
    shares = 0.8 if load_library()[0].has_bf16_gemm else 0.3
    chance = 2 if x.numel() <= 256 else 1  # of a few numbers
    assert rms(ours - literal) <= chance * shares * rms(literal - truth) + 1e-6 * rms(truth)
    if not has_outliers:  # a large error is beyond the slopes of the model
        assert rms(ours - truth) <= chance * 1.5 * expected_error(double, x_double) + 1e-6 * rms(truth)


@pytest.mark.parametrize(('kind', 'limit'), [(SwinBackbone, 0.02), (SwinV2Backbone, 0.03)])
def test_maps_of_a_backbone(kind, limit):
    """All layers are in eight bits: the outputs are those of the literal products, and near float32's."""
    torch.manual_seed(0)
    sizes = dict(embed_dims=48, depths=(2, 2), num_heads=(3, 6), strides=(4, 2), out_indices=(0, 1))
    model = kind(**sizes, drop_path_rate=0.0, backend='native').eval()
    x, double = torch.randn(2, 3, 57, 75), copy.deepcopy(model).double()
    with torch.no_grad():
        truth = reference.maps(double, x.double())
        with products_by(linear):
            literal = reference.maps(double, x.double())
    for ours, near, exact in zip(by_library(model, x), literal, truth):
        assert 0 < rms(ours - exact) < limit * rms(exact)
        assert rms(ours - near) < rms(near - exact)


def test_products_are_exact():
    """Numbers on the steps of both operands have no error."""
    torch.manual_seed(0)
    x_TK, weight_NK = torch.randint(0, 255, (70, 200)).float(), torch.randint(-127, 128, (50, 200)).float()
    x_TK[:, 0], x_TK[:, 1], weight_NK[:, 0] = 0, 254, 127
    layer = PatchEmbed(200, 50, (1, 1), None)
    layer.projection.weight.data.copy_(weight_NK[..., None, None])
    torch.nn.init.zeros_(layer.projection.bias)
    layer.backend = 'native'
    expected = F.linear(x_TK.double(), weight_NK.double()).float()
    if load_library()[0].has_bf16_gemm:
        assert torch.equal(x_TK, x_TK.bfloat16().float())
    assert torch.equal(by_library(layer, x_TK.T[None, :, None])[0, 0], expected)


@pytest.mark.parametrize('wrong', [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_stay_visible(wrong):
    block, x = make_block(SwinBlock, (4, 4), (0, 0), 2, 32, backend='native'), torch.randn(1, 8, 4, 32)
    x[0, 0, 0, 5] = wrong
    y = by_library(block, x)
    assert not y[0, 0, 0].isfinite().any()
    assert y[0, 4:].isfinite().all()
    block.ffn.layers[1].weight.data[7, 3] = wrong
    assert not by_library(block, torch.randn(1, 8, 4, 32))[..., 7].isfinite().any()


def test_a_step_computes_gradients_in_float32():
    block, x = make_block(SwinBlock, (4, 4), (2, 2), 2, 32, backend='native'), torch.randn(1, 9, 7, 32)
    exact = block(x).detach()
    set_precision(block, 'int8')
    assert torch.equal(block(x), exact)
    block(x).sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())
    block.requires_grad_(False)
    in_eight_bits = block(x)
    assert 0 < rms(in_eight_bits - exact) < 0.03 * rms(exact)
    block.ffn.layers[1].weight.mul_(2)  # packed again
    assert not torch.equal(block(x), in_eight_bits)


def test_accelerate_sets_the_precision_and_restore_removes_it():
    sizes = dict(embed_dims=48, depths=(1, 1), num_heads=(3, 6), strides=(4, 2), out_indices=(0, 1), drop_path_rate=0.0)
    model, x = SwinBackbone(**sizes).eval(), torch.randn(1, 3, 32, 40)
    with torch.no_grad():
        exact = model(x)
        assert accelerate(model, precision='int8', dry_run=True) is model
        assert all(map(torch.equal, model(x), exact))
        outputs = accelerate(model, precision='int8')(x)
        assert not any(map(torch.equal, outputs, exact))
        assert all(map(torch.equal, copy.deepcopy(model)(x), outputs))
        assert all(map(torch.equal, accelerate(model)(x), exact))
        assert all(map(torch.equal, restore(accelerate(model, precision='int8'))(x), exact))
    with pytest.raises(ValueError, match="precision must be None or 'int8', got 'int4'"):
        accelerate(model, precision='int4')
