"""Compiled layers show numbers that are not finite, and overflows, in the output."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.backends.native_blocks import (
    by_operator,
    by_reference,
    embed,
    merge,
    output_and_gradients,
    output_norm,
    random_weights,
)

NOT_FINITE = math.nan, math.inf, -math.inf
# In a row, large numbers overflow the sum of squares, the square of a number, or the sum.
OVERFLOWING = 5e18, 5e19, 1e30, 3e38
# A NaN in a computation keeps the bits. `ODD_NAN` has bits at the places of an added exponent.
ODD_NAN = torch.tensor([0x7FC00155], dtype=torch.int32).view(torch.float32).item()


def layers(norm: str):
    """Return a layer with a norm, and `cells`, the side of a window of dependent tokens.

    The layer is a function of a map (1, 6, 8, 96) to a map.
    """
    weight, bias = 1 + 0.1 * torch.randn(384), torch.randn(384)
    if norm == 'output':
        return lambda x, dtype: output_norm(x, weight[:96], bias[:96]).permute(0, 2, 3, 1), 1
    if norm == 'embedding':
        embedding = torch.eye(96)[:, :, None, None]
        return (
            lambda x, dtype: embed(
                x.permute(0, 3, 1, 2), embedding, None, weight[:96], bias[:96], eps=1e-5, dtype=dtype
            ),
            1,
        )
    if norm in ('before merging', 'after merging'):
        after, merging = norm == 'after merging', torch.randn(192, 384) / 20
        size = 192 if after else 384
        norm = weight[:size], bias[:size]
        return lambda x, dtype: merge(x, merging, *norm, eps=1e-5, post_norm=after, dtype=dtype), 2
    v2 = norm != 'block'
    weights = random_weights(96, 3, (2, 2), v2, norm3=norm == 'V2 block, three norms')
    return lambda x, dtype: by_operator(x, weights, 3, (2, 2), (0, 0), False, dtype), 2


NORMS = 'output', 'embedding', 'before merging', 'after merging', 'block', 'V2 block', 'V2 block, three norms'


def tokens_of(place: tuple[int, int], y_BHWC, cells: int):
    """Return a mask of an output (1, H, W, C): tokens in the window of `place`, for windows of `cells`."""
    H, W = y_BHWC.shape[1:3]
    rows, columns = torch.arange(H)[:, None] * (6 // H), torch.arange(W) * (8 // W)  # of the map
    return (rows // cells == place[0] // cells) & (columns // cells == place[1] // cells)


@pytest.mark.parametrize('value', [*NOT_FINITE, *OVERFLOWING])
@pytest.mark.parametrize('norm', NORMS)
def test_a_norm_gives_nan_for_what_it_cannot_normalise(norm, value, dtype, record_fault):
    layer, cells = layers(norm)
    x = torch.randn(1, 6, 8, 96)
    clean = layer(x, dtype)
    x[0, 3, 4] = torch.randn(96).sign() * value if value in OVERFLOWING else x[0, 3, 4]
    if value in NOT_FINITE:
        x[0, 3, 4, 17] = value
    grad, leaf = torch.randn_like(clean), x.requires_grad_()
    y = layer(leaf, dtype)
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
        y = output_norm(x, None, None)[0, :, 0].T
        (of_x,) = torch.autograd.grad(y.square().sum(), x)
        held = variance[0, 0] * channels < torch.finfo(torch.float32).max
        assert torch.equal(y.isfinite().all(-1), held)
        assert torch.equal(y.isnan().all(-1), ~held)
        assert not of_x[0, 0][~held].isfinite().any()
        truth = F.layer_norm(x.double(), (channels,))[0, 0]
        assert (y - truth)[held].abs().max() < 1e-5 if held.any() else True
    record_fault('not_finite', 29)


@pytest.mark.parametrize('size', [-1e3, -1e6, -1e10, -1e19, -1e30, -3e38, 1e10, 1e19, 1e30])
def test_gelu_of_large_numbers_is_torchs(size, dtype, record_fault):
    """Phi of very negative numbers is exactly 0: the output is a product of Phi with a large number."""
    x, weights = torch.randn(1, 4, 4, 32), random_weights(32, 1, (4, 4), v2=False)
    weights['ffn.layers.0.0.bias'][5] = size
    weights['ffn.layers.1.weight'][:, 5] /= abs(size)  # to a size that counts
    weights['ffn.layers.0.0.bias'][6] = size
    weights['ffn.layers.1.weight'][:, 6] *= 1 if size < 0 else 0
    case = 1, (4, 4), (0, 0), False
    truth = output_and_gradients(lambda x, w: by_reference(x, w, *case), x, weights, torch.ones_like(x))
    ours = output_and_gradients(lambda x, w: by_operator(x, w, *case, dtype), x, weights, torch.ones_like(x))
    y, reference, atol = by_operator(x, weights, *case, dtype), by_reference(x, weights, *case), 1e-5
    if dtype == torch.bfloat16:
        atol = 0.1
    torch.testing.assert_close(y, reference, atol=atol, rtol=0)
    for name in ('x', 'ffn.layers.0.0.bias'):
        torch.testing.assert_close(ours[name], truth[name], atol=10 * atol, rtol=0)
    record_fault('not_finite')


@pytest.mark.parametrize('value', NOT_FINITE)
def test_gelu_of_what_is_not_finite_is_not(value, dtype, record_fault):
    x, weights = torch.randn(1, 4, 4, 32), random_weights(32, 1, (4, 4), v2=False)
    weights['ffn.layers.0.0.bias'][5] = value
    case = 1, (4, 4), (0, 0), False
    assert not by_operator(x, weights, *case, dtype).isfinite().any()
    ours = output_and_gradients(lambda x, w: by_operator(x, w, *case, dtype), x, weights, torch.ones_like(x))
    assert not ours['x'].isfinite().any()
    record_fault('not_finite', 2)


WEIGHTS = [(v2, name) for v2 in (False, True) for name in random_weights(64, 2, (4, 4), v2, norm3=v2)]


@pytest.mark.parametrize('value', [math.nan, ODD_NAN, -ODD_NAN], ids=['NaN', 'odd NaN', 'negative odd NaN'])
@pytest.mark.parametrize(('v2', 'name'), WEIGHTS)
def test_a_nan_in_any_weight_is_in_the_output_and_the_gradients(v2, name, value, dtype, record_fault):
    x, weights = torch.randn(1, 8, 8, 64), random_weights(64, 2, (4, 4), v2, norm3=v2)
    weights[name].view(-1)[0] = value
    case = 2, (4, 4), (2, 2), False
    truth = output_and_gradients(lambda x, w: by_reference(x, w, *case), x, weights, torch.ones_like(x))
    ours = output_and_gradients(lambda x, w: by_operator(x, w, *case, dtype), x, weights, torch.ones_like(x))
    reference, y = by_reference(x, weights, *case), by_operator(x, weights, *case, dtype)
    assert reference.isnan().any()
    assert y[reference.isnan()].isnan().all()
    for other, gradient in truth.items():
        assert not ours[other][gradient.isnan()].isfinite().any(), other
    record_fault('not_finite', 2)


@pytest.mark.parametrize(
    ('v2', 'rows', 'size'), [(True, 32, 1e20), (True, 32, 1e30), (False, 64, 1e20), (False, 64, 1e38)]
)
def test_queries_and_keys_that_overflow_give_nan(v2, rows, size, dtype, record_fault):
    """Logits overflow in V1, lengths of queries in V2: x / inf is 0, no direction."""
    x, weights = torch.randn(1, 4, 4, 32), random_weights(32, 1, (4, 4), v2)
    weights['attn.w_msa.qkv.weight'][:rows] *= size
    assert by_operator(x, weights, 1, (4, 4), (0, 0), False, dtype).isnan().all()
    record_fault('not_finite')


@pytest.mark.parametrize('size', [1e10, 1e20, 1e30])
def test_what_is_masked_has_no_weight_however_large_it_is(size, dtype, record_fault):
    """A token of a different region has a weight of exactly 0, not of almost 0."""
    x, weights = torch.randn(1, 8, 8, 64), random_weights(64, 2, (4, 4), v2=True)
    weights['attn.w_msa.qkv.weight'][128:, 0] = size
    x[..., 0] = 0
    large = x.clone()
    large[0, 0, 0, 0] = 1  # in a window with the map's last rows and columns
    plain, ours = (by_operator(x, weights, 2, (4, 4), (2, 2), False, dtype)[0] for x in (x, large))
    assert torch.equal(ours[6:, 6:], plain[6:, 6:])
    assert not torch.equal(ours[:2, :2], plain[:2, :2])
    record_fault('not_finite')
