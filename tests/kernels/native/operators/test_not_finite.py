"""Compiled layers show numbers that are not finite, and overflows, in the output."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers import reference
from helpers.models.blocks import autocast_to, make_block, output_and_gradients
from torch import nn

from swin_backbone.kernels.swin.swin_layers import plan_output_norm
from swin_backbone.models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinV2Block

NOT_FINITE = math.nan, math.inf, -math.inf
# In a row, large numbers overflow the sum of squares, the square of a number, or the sum.
OVERFLOWING = 5e18, 5e19, 1e30, 3e38
# A NaN in a computation keeps the bits. `ODD_NAN` has bits at the places of an added exponent.
ODD_NAN = torch.tensor([0x7FC00155], dtype=torch.int32).view(torch.float32).item()


def layer_with(norm: str):
    """Return a layer with a norm, and `cells`, the side of a window of dependent tokens.

    The layer is a function of a map (1, 6, 8, 96) to a map.
    """
    if norm == 'output':
        return partial(output_norm, nn.LayerNorm(96)), 1
    if norm == 'embedding':
        layer, cells = PatchEmbed(96, 96, (1, 1), dict(type='LN')), 1
        nn.init.dirac_(layer.projection.weight)
        nn.init.zeros_(layer.projection.bias)
    elif norm in ('before merging', 'after merging'):
        layer, cells = PatchMerging(96, 192, 2, dict(type='LN'), post_norm=norm == 'after merging'), 2
    else:
        more = {} if norm == 'block' else dict(extra_norm=norm == 'V2 block, three norms')
        return make_block(SwinBlock if norm == 'block' else SwinV2Block, (2, 2), (0, 0), 3, 96, 'native', **more), 2
    layer.backend = 'native'
    return (lambda x: layer(x.permute(0, 3, 1, 2))) if norm == 'embedding' else layer, cells


def output_norm(norm, x_BHWC):
    return plan_output_norm(None, x_BHWC, norm)(x_BHWC, norm).permute(0, 2, 3, 1)


NORMS = 'output', 'embedding', 'before merging', 'after merging', 'block', 'V2 block', 'V2 block, three norms'


def tokens_of(place: tuple[int, int], y_BHWC, cells: int):
    """Return a mask of an output (1, H, W, C): tokens in the window of `place`, for windows of `cells`."""
    H, W = y_BHWC.shape[1:3]
    rows, columns = torch.arange(H)[:, None] * (6 // H), torch.arange(W) * (8 // W)  # of the map
    return (rows // cells == place[0] // cells) & (columns // cells == place[1] // cells)


@pytest.mark.parametrize('value', [*NOT_FINITE, *OVERFLOWING])
@pytest.mark.parametrize('norm', NORMS)
def test_a_norm_gives_nan_for_what_it_cannot_normalise(norm, value, dtype, record_fault):
    layer, cells = layer_with(norm)
    x = torch.randn(1, 6, 8, 96)
    with autocast_to(dtype):
        clean = layer(x)
    x[0, 3, 4] = torch.randn(96).sign() * value if value in OVERFLOWING else x[0, 3, 4]
    if value in NOT_FINITE:
        x[0, 3, 4, 17] = value
    grad, leaf = torch.randn_like(clean), x.requires_grad_()
    with autocast_to(dtype):
        y = layer(leaf)
    (of_x,) = torch.autograd.grad(y, leaf, grad)
    depends = tokens_of((3, 4), y, cells)
    if norm == 'block':  # a mask is a weight of 0, and 0 * inf is NaN: masked tokens may be NaN too
        assert y[0, 3, 4].isnan().all()
    else:
        assert y[0][depends].isfinite().logical_not().any(-1).any()
    assert torch.equal(y[0][~depends], clean[0][~depends])
    assert not of_x[0, 3, 4].isfinite().any()
    assert of_x[0, :2].isfinite().all()
    record_fault('not_finite', 2)


@pytest.mark.parametrize('channels', [8, 24, 96, 100, 384])
def test_a_row_is_finite_as_long_as_its_variance_is(channels, record_fault):
    """Gradients are finite too, in rows of any length: the ends of a row are computed apart."""
    for exponent in range(10, 39):
        x = (torch.randn(1, 1, 4, channels).double() * 10.0**exponent).clamp(-3e38, 3e38).float().requires_grad_()
        variance = x.double().var(-1, unbiased=False)
        y = output_norm(nn.LayerNorm(channels, elementwise_affine=False), x)[0, 0]
        (of_x,) = torch.autograd.grad(y.square().sum(), x)
        contents = variance[0, 0] * channels < torch.finfo(torch.float32).max
        assert torch.equal(y.isfinite().all(-1), contents)
        assert torch.equal(y.isnan().all(-1), ~contents)
        assert not of_x[0, 0][~contents].isfinite().any()
        truth = F.layer_norm(x.double(), (channels,))[0, 0]
        assert (y - truth)[contents].abs().max() < 1e-5 if contents.any() else True
    record_fault('not_finite', 29)


def both(block, x, dtype):
    """Return outputs and gradients of the reference in float32, and of the library."""
    truth = output_and_gradients(partial(reference.block, block), block, x, torch.ones_like(x))
    with autocast_to(dtype):
        return truth, output_and_gradients(block, block, x, torch.ones_like(x))


def in_4x4_windows(kind=SwinBlock, heads=1, channels=32, shift=(0, 0), **arguments):
    return make_block(kind, (4, 4), shift, heads, channels, 'native', **arguments)


@pytest.mark.parametrize('size', [-1e3, -1e6, -1e10, -1e19, -1e30, -3e38, 1e10, 1e19, 1e30])
@torch.no_grad()
def test_gelu_of_large_numbers_is_torchs(size, dtype, record_fault):
    """Phi of very negative numbers is exactly 0: the output is a product of Phi with a large number."""
    x, block = torch.randn(1, 4, 4, 32), in_4x4_windows()
    bias, weight = block.ffn.layers[0][0].bias, block.ffn.layers[1].weight
    bias[5] = bias[6] = size
    weight[:, 5] /= abs(size)  # to a size that counts
    weight[:, 6] *= 1 if size < 0 else 0
    with torch.enable_grad():
        truth, ours = both(block, x, dtype)
    atol = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours['y'], truth['y'], atol=atol, rtol=0)
    for name in ('x', 'ffn.layers.0.0.bias'):
        torch.testing.assert_close(ours[name], truth[name], atol=10 * atol, rtol=0)
    record_fault('not_finite')


V2 = dict(kind=SwinV2Block, extra_norm=True)
WEIGHTS = [(more, name) for more in ({}, V2) for name, _ in in_4x4_windows(**more).named_parameters()]


@pytest.mark.parametrize('value', [math.nan, -math.inf, ODD_NAN], ids=['NaN', '-inf', 'odd'])
@pytest.mark.parametrize(('more', 'name'), WEIGHTS)
def test_a_weight_that_is_not_finite_is_in_all_results(more, name, value, dtype, record_fault):
    x, block = torch.randn(1, 8, 8, 64), in_4x4_windows(heads=2, channels=64, shift=(2, 2), **more)
    block.get_parameter(name).data.view(-1)[0] = value
    truth, ours = both(block, x, dtype)
    is_nan = truth['y'].isnan()
    assert math.isinf(value) or (is_nan.any() and ours['y'][is_nan].isnan().all())
    for other, numbers in truth.items():
        assert not ours[other][~numbers.isfinite()].isfinite().any(), other
    record_fault('not_finite', 2)


@pytest.mark.parametrize(
    ('kind', 'rows', 'size'),
    [(SwinV2Block, 32, 1e20), (SwinV2Block, 32, 1e30), (SwinBlock, 64, 1e20), (SwinBlock, 64, 1e38)],
)
@torch.no_grad()
def test_queries_and_keys_that_overflow_give_nan(kind, rows, size, dtype, record_fault):
    """Logits overflow in V1, lengths of queries in V2: x / inf is 0, no direction."""
    block = in_4x4_windows(kind)
    block.attn.w_msa.qkv.weight[:rows] *= size
    with autocast_to(dtype):
        assert block(torch.randn(1, 4, 4, 32)).isnan().all()
    record_fault('not_finite')


@pytest.mark.parametrize('size', [1e10, 1e20, 1e30])
@torch.no_grad()
def test_what_is_masked_has_no_weight_however_large_it_is(size, dtype, record_fault):
    """A token of a different region has a weight of exactly 0, not of almost 0."""
    x, block = torch.randn(1, 8, 8, 64), in_4x4_windows(SwinV2Block, 2, 64, (2, 2))
    block.attn.w_msa.qkv.weight[128:, 0] = size
    x[..., 0] = 0
    large = x.clone()
    large[0, 0, 0, 0] = 1  # in a window with the map's last rows and columns
    with autocast_to(dtype):
        plain, ours = block(x)[0], block(large)[0]
    assert torch.equal(ours[6:, 6:], plain[6:, 6:])
    assert not torch.equal(ours[:2, :2], plain[:2, :2])
    record_fault('not_finite')
