"""Deformable attention of the compiled library against torch's `grid_sample` in float64."""

import pytest
import torch
from helpers.versions import needs_torch
from hypothesis import given
from hypothesis import strategies as st

from swin_backbone.kernels.detection.deformable import _sample_by_torch, deformable_attention
from swin_backbone.kernels.native.availability import find_reason_against_dtype

pytestmark = pytest.mark.skipif(find_reason_against_dtype(torch.float32) is not None, reason='the library is not built')
sides = st.integers(1, 9)


def make_arguments(shapes, batch=2, queries=11, heads=2, channels=8, points=3, spread=1.2):
    generator = torch.Generator().manual_seed(0)
    tokens, levels = sum(height * width for height, width in shapes), len(shapes)
    values = torch.randn(batch, tokens, heads, channels, generator=generator)
    places = 0.5 + spread * (torch.rand(batch, queries, heads, levels, points, 2, generator=generator) - 0.5)
    weights = torch.randn(batch, queries, heads, levels, points, generator=generator)
    return torch.tensor(shapes), [values, places, weights]


def gradients(function, tensors):
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad((y * y.detach().cos()).sum(), inputs)]


def by_library(shapes_L2):
    return lambda values, places, weights: deformable_attention(values, shapes_L2, places, weights)


@given(
    st.lists(st.tuples(sides, sides), min_size=1, max_size=3),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 3), st.integers(1, 37), st.integers(1, 4)),
    st.sampled_from([1.0, 1.4, 5.0]),
)
def test_outputs_and_gradients_equal_those_of_torch(shapes, sizes, spread):
    shapes_L2, tensors = make_arguments(shapes, *sizes, spread)
    ours = gradients(by_library(shapes_L2), tensors)
    truth = gradients(
        lambda *inputs: _sample_by_torch(shapes_L2, *inputs).flatten(2), [tensor.double() for tensor in tensors]
    )
    for one, exact in zip(ours, truth):
        torch.testing.assert_close(one.double(), exact, rtol=0, atol=1e-4 * max(1.0, float(exact.abs().max())))


def test_threads_and_places_that_are_not_finite():
    shapes_L2, tensors = make_arguments([(5, 7), (2, 3)])
    ours = gradients(by_library(shapes_L2), tensors)
    torch.set_num_threads(3)
    assert all(map(torch.equal, ours, gradients(by_library(shapes_L2), tensors)))
    for number in (float('nan'), float('inf'), -1e30):
        tensors[1][0, 0, 0, 0, 0] = number
        assert by_library(shapes_L2)(*tensors).isfinite().all()


@needs_torch('2.5', 'second derivative of grid_sample')
def test_half_precision_and_second_derivatives():
    shapes_L2, tensors = make_arguments([(5, 7)])
    exact, y = by_library(shapes_L2)(*tensors), by_library(shapes_L2)(tensors[0].bfloat16(), *tensors[1:])
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)
    values = tensors[0].requires_grad_()
    loss = by_library(shapes_L2)(values, *tensors[1:]).pow(3).sum()
    (grad,) = torch.autograd.grad(loss, values, create_graph=True)
    assert torch.autograd.grad(grad.square().sum(), values)[0].abs().max() > 0


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(shapes=torch.tensor([[5, 6]])), 'tokens must be from 30 to 30, got 35'),
        (dict(shapes=torch.tensor([[5, 7], [1, 1]])), r'takes shapes of \[1, 2\]'),
        (dict(shapes=torch.tensor([[5.0, 7.0]])), 'takes shapes, torch.int64 in memory, not torch.float32'),
        (dict(places=torch.zeros(2, 11, 2, 1, 2, 2)), 'takes places of'),
    ],
)
def test_wrong_arguments_are_errors(change, message):
    shapes_L2, (values, places, weights) = make_arguments([(5, 7)])
    with pytest.raises(ValueError, match=message):
        deformable_attention(values, change.get('shapes', shapes_L2), change.get('places', places), weights)
