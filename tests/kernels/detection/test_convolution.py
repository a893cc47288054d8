"""The library's 3x3 convolutions beside torch's in double precision: outputs, gradients, layouts, wrong arguments."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.graphs import layers_in, record_graphs
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from swin_backbone.kernels.detection import convolution
from swin_backbone.kernels.detection.convolution import convolve, pack, takes_maps
from swin_backbone.kernels.native.availability import find_reason_against_dtype
from swin_backbone.openmmlab.layers.conv3x3 import convolve_3x3

# Rounding errors relative to the largest number, for float32 sums of 1 to 9 * 300 transformed products.
ROUNDING = 1e-5


needs_bfloat16 = pytest.mark.skipif(
    find_reason_against_dtype(torch.bfloat16) is not None, reason='the library does not compute bfloat16 here'
)


class Subclass(torch.Tensor):
    pass


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found, truth):
    assert found.shape == truth.shape
    assert (found - truth).abs().max() <= ROUNDING * truth.abs().max().clamp(min=1)


def outputs_and_gradients(compute, *tensors):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    y = compute(*leaves)
    grad = drawn(*y.shape, seed=9).bfloat16().to(y)  # of equal numbers in every dtype
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], grad)]


def by_torch(x, weight, bias):
    return F.conv2d(x, weight, bias, padding=1)


@pytest.mark.parametrize('dtype', [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
@given(
    st.integers(1, 3), st.integers(1, 19), st.integers(1, 19), st.integers(1, 70), st.integers(1, 120), st.booleans()
)
@example(2, 2, 10, 1, 2, True)  # a gradient of the bias from few numbers that cancel
def test_outputs_and_gradients_are_those_of_double_precision(dtype, B, H, W, C, N, has_bias):
    x, weight, bias = drawn(B, C, H, W), drawn(N, C, 3, 3, seed=1), drawn(N, seed=2) if has_bias else None
    in_double = x.to(dtype).double(), weight.double(), None if bias is None else bias.double()
    truth = outputs_and_gradients(by_torch, *in_double)
    with torch.autocast('cpu', torch.bfloat16, enabled=dtype is torch.bfloat16):
        found = outputs_and_gradients(convolve, x, weight, bias)
    assert found[0].dtype is dtype
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    for index, (one, target) in enumerate(zip(found, truth)):
        # bfloat16 rounds the output once, and gradients more often: torch's sums too.
        rounding = ROUNDING if dtype is torch.float32 else 2**-6 if index else 2**-8
        assert one.shape == target.shape
        assert (one - target).abs().max() <= rounding * target.abs().max().clamp(min=1)


def test_maps_and_weights_in_any_memory(dtype):
    x, weight, bias = drawn(2, 32, 12, 20).to(dtype), drawn(40, 32, 3, 3, seed=1), drawn(80, seed=2)[::2]
    expected = convolve(x, weight, bias.contiguous())
    assert expected.dtype is dtype
    wide = drawn(2, 70, 30, 20).to(dtype)
    wide[:, 6:38, 4:28:2] = x
    last = torch.channels_last
    for maps in (x, x.contiguous(memory_format=last), wide[:, 6:38, 4:28:2]):
        for weights in (weight, weight.contiguous(memory_format=last), weight.flip(3).flip(3)):
            assert torch.equal(convolve(maps, weights, bias), expected)


@needs_bfloat16
@torch.no_grad()
def test_a_weight_is_packed_once_until_it_changes(monkeypatch):
    packed, weight, cache = [], drawn(32, 32, 3, 3), {}
    monkeypatch.setattr(convolution, 'pack', lambda weight, tile: packed.append(tile) or pack(weight, tile))
    for _ in range(2):
        for side in (72, 30, 16):
            convolve(drawn(2, 32, side, side).bfloat16(), weight, None, cache)
    assert packed == [6, 4]
    np.asarray(weight)[3, 2, 1, 0] += 1  # numpy leaves no trace in the tensor
    x = drawn(2, 32, 16, 16)
    assert_close(convolve(x, weight, None, cache), by_torch(x.double(), weight.double(), None))
    assert packed == [6, 4, 4]


def test_a_gradient_alone_and_a_second_derivative(dtype):
    x, weight, bias = drawn(1, 5, 9, 7).to(dtype), drawn(6, 5, 3, 3, seed=1), drawn(6, seed=2)
    rounding = ROUNDING if dtype is torch.float32 else 3e-2

    def penalty(compute, tensors, *needs):
        leaves = [t.detach().clone().requires_grad_(needed) for t, needed in zip(tensors, needs)]
        target = [t for t in leaves if t.requires_grad]
        loss = compute(*leaves).to(torch.promote_types(leaves[0].dtype, torch.float32)).square().sum()
        grads = torch.autograd.grad(loss, target, create_graph=True)
        return [*grads, *torch.autograd.grad(sum(g.to(loss.dtype).square().sum() for g in grads), target)]

    in_double = [t.double() for t in (x, weight, bias)]
    for needs in ((True, False, False), (False, True, False), (False, False, True), (True, True, True)):
        for found, target in zip(penalty(convolve, (x, weight, bias), *needs), penalty(by_torch, in_double, *needs)):
            assert (found - target).abs().max() <= rounding * target.abs().max()


def test_no_maps():
    x, weight, bias = drawn(0, 32, 7, 5), drawn(32, 32, 3, 3, seed=1), drawn(32)
    y, of_x, of_weight, of_bias = outputs_and_gradients(convolve, x, weight, bias)
    assert y.shape == of_x.shape == (0, 32, 7, 5)
    assert not of_weight.any()
    assert not of_bias.any()


def test_nonfinite_numbers_stay_in_their_image():
    x, weight = drawn(2, 32, 12, 12), drawn(32, 32, 3, 3, seed=1)
    x[0, 5, 6, 6] = torch.inf
    y = convolve(x, weight, None)
    assert not y[0, :, 5:8, 5:8].isfinite().any()
    assert y[1].isfinite().all()
    assert y[0, :, [*range(4), *range(8, 12)]].isfinite().all()  # rows 4 to 7 are a tile
    x[0, 5, 6, 6], x[0, 5, 7, 7] = 0, torch.inf  # two tiles along an axis read the number
    y = convolve(x, weight, None)
    assert not y[0, :, 6:9, 6:9].isfinite().any()
    assert y[0, :, :4].isfinite().all()


def test_what_is_left_to_torch():
    x, weight = drawn(1, 32, 32, 32), drawn(32, 32, 3, 3, seed=1)
    assert takes_maps(x, weight, None)
    assert not takes_maps(x.double(), weight.double(), None)
    assert not takes_maps(x.bfloat16(), weight, None)
    assert not takes_maps(x[0], weight, None)
    assert not takes_maps(x[:, :31], weight[:, :31], None)
    assert not takes_maps(x, weight[:31], None)
    assert not takes_maps(x[:, :, :16, :16], weight, None)  # 16 tiles
    assert takes_maps(drawn(2, 32, 16, 16), weight, None)
    assert not takes_maps(x[:, :31], weight, None)  # torch raises the error
    assert not takes_maps(x, weight, drawn(32).double())
    assert not takes_maps(x.to('meta'), weight.to('meta'), None)
    assert not takes_maps(torch.complex(x, x).conj().imag, weight, None)  # torch negates the numbers on reading
    assert not takes_maps(x.as_subclass(Subclass), weight, None)
    with FlopCounterMode(display=False):
        assert not takes_maps(x, weight, None)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not takes_maps(x, weight, None)


def test_float16_is_computed_in_float32():
    x, weight, bias = drawn(2, 32, 24, 24), drawn(32, 32, 3, 3, seed=1).requires_grad_(), drawn(32, seed=2)
    with torch.autocast('cpu', torch.float16):
        assert takes_maps(x, weight, bias)
        found = convolve(x, weight, bias)
    assert torch.equal(found, convolve(x, weight, bias).half())
    (grad,) = torch.autograd.grad(found, weight, torch.ones_like(found))
    assert torch.equal(grad, torch.autograd.grad(convolve(x, weight, bias), weight, torch.ones(found.shape))[0])


def test_bfloat16_is_taken_where_torch_has_no_tiles(monkeypatch):
    x, weight = drawn(1, 32, 32, 32), drawn(32, 32, 3, 3, seed=1)

    def taken():
        with torch.autocast('cpu', torch.bfloat16):
            by_autocast = [takes_maps(x, weight, None), takes_maps(x.bfloat16(), weight, drawn(32))]
            assert not takes_maps(x.double(), weight, None)
        return {*by_autocast, takes_maps(x.bfloat16(), weight.bfloat16(), None)}

    monkeypatch.setattr(convolution, 'find_reason_against_dtype', lambda dtype: None)
    for isa, expected in (('avx512_bf16', True), ('amx', False)):
        monkeypatch.setattr(convolution, 'get_libswin', lambda isa=isa: SimpleNamespace(isa=isa))
        assert taken() == {expected}
    reasons = {torch.bfloat16: 'no'}
    monkeypatch.setattr(convolution, 'find_reason_against_dtype', reasons.get)
    assert taken() == {False}


@pytest.mark.parametrize(
    ('x', 'weight', 'bias'),
    [
        (drawn(1, 8, 9, 9), drawn(4, 8, 1, 1), None),
        (drawn(1, 8, 9, 9), drawn(4, 7, 3, 3), None),
        (drawn(1, 8, 9, 9), drawn(4, 8, 3, 3), drawn(5)),
        (drawn(1, 8, 9, 9).double(), drawn(4, 8, 3, 3), None),
    ],
)
def test_wrong_arguments(x, weight, bias):
    with pytest.raises(ValueError, match=r'weight|packed|bias|x '):
        convolve(x, weight, bias)


@pytest.mark.parametrize('has_bias', [False, True])
def test_a_graph_for_maps_of_all_sizes_is_torchs(has_bias):
    weight, bias = drawn(40, 32, 3, 3, seed=1), drawn(40, seed=2) if has_bias else None
    run, graphs = record_graphs(convolve_3x3, dynamic=True, fullgraph=True)
    for shape in ((2, 32, 24, 36), (4, 32, 9, 5), (3, 32, 31, 32)):
        expected = outputs_and_gradients(by_torch, drawn(*shape), weight, bias)
        y = outputs_and_gradients(run, drawn(*shape), weight, bias)
        assert all((a - b).abs().max() <= 1e-5 * b.abs().max() for a, b in zip(y, expected))
    assert [layers_in(one.graph) for one in graphs] == [{}]
