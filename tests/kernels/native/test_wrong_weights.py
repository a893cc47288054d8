"""Weights of wrong shape, dtype or memory in a layer: the result or the error is torch's."""

import random
from contextlib import nullcontext

import pytest
import torch
from helpers import apart
from helpers.kernels.errors import relative_error
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from swin_backbone import SwinBackbone, SwinV2Backbone

DTYPES = torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.complex64
LAYERS = nn.Linear, nn.LayerNorm, nn.Conv2d


class Held(torch.Tensor):
    """A tensor without memory, around a second tensor, like tensors of quantization and distributed training."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function, _, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda one: one.held, (args, kwargs or {}))
        return function(*args, **kwargs)


def at_an_odd_address(x):
    return torch.frombuffer(bytearray(1) + x.contiguous().numpy().tobytes(), dtype=x.dtype, offset=1).view(x.shape)


ELSEWHERE = {
    'negated when read': lambda x: torch._neg_view(-x),
    'at an odd address': at_an_odd_address,
    'the imaginary part of a conjugate': lambda x: torch.complex(x, -x).conj().imag,
    'held by a subclass': Held,
}


def with_other_sizes(x, draw):
    sizes = list(x.shape)
    at = draw.randrange(len(sizes))
    sizes[at] = draw.choice([0, 1, sizes[at] - 1, sizes[at] + 1, 2 * sizes[at]])
    return torch.randn(sizes)


WRONG = [
    lambda x, draw: x.to(draw.choice(DTYPES)),
    lambda x, draw: draw.choice([x[None], x.flatten(), x[0], x.sum()]),
    lambda x, draw: x.transpose(0, -1),
    lambda x, draw: x.transpose(0, -1).contiguous().transpose(0, -1),
    lambda x, draw: x.repeat_interleave(2, 0)[::2],
    lambda x, draw: x[:1].expand(x.shape),
    lambda x, draw: at_an_odd_address(x),
    lambda x, draw: torch._neg_view(-x),
    lambda x, draw: x.to_sparse(),
    lambda x, draw: None,
    *[with_other_sizes] * 4,
]


def make_model(kind):
    return kind(embed_dims=16, depths=(1, 1), num_heads=(2, 2), window_size=4, strides=(4, 2), out_indices=(0, 1))


def outcome(model, x, backend, with_gradients):
    """Return maps and gradients, or the error's type."""
    model.backend = backend
    model.zero_grad()
    try:
        with torch.set_grad_enabled(with_gradients):
            maps = model(x)
        if with_gradients:
            sum(y.square().mean() for y in maps).backward()
        return [*maps, *(weight.grad for weight in model.parameters() if weight.grad is not None)]
    except (ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        return f'{type(error).__name__}: {error}'


def compare(seed, count):
    """Return how many models computed; raise an AssertionError if backends differ."""
    draw, computed = random.Random(seed), 0
    torch.manual_seed(seed)
    for number in range(count):
        kind = draw.choice([SwinBackbone, SwinV2Backbone])
        model = make_model(kind)
        for weight in model.eval().parameters():
            nn.init.normal_(weight, std=0.2)
        name, layer = draw.choice([(n, one) for n, one in model.named_modules() if isinstance(one, LAYERS)])
        end = draw.choice([end for end in ('weight', 'bias') if getattr(layer, end) is not None])
        index = draw.randrange(len(WRONG))
        wrong = WRONG[index](getattr(layer, end).detach(), draw)
        if wrong is not None:
            wrong = nn.Parameter(wrong, requires_grad=wrong.is_floating_point())
        x, with_gradients = torch.randn(1, 3, 20, 24), draw.random() < 0.5
        if draw.random() < 0.5:
            outcome(model, x, 'auto', False)  # the layer has been checked before
        setattr(layer, end, wrong)
        ours, torchs = (outcome(model, x, backend, with_gradients) for backend in ('auto', 'torch'))
        what = number, index, kind.__name__, name, end
        assert isinstance(ours, str) == isinstance(torchs, str), (*what, ours, torchs)
        if not isinstance(ours, str):
            computed += 1
            assert len(ours) == len(torchs), what
            assert relative_error(ours, torchs) < 1e-4, what
    return computed


@pytest.mark.parametrize('seed', [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_wrong_weights_give_what_torch_gives(seed, record_fault):
    assert 20 < apart.call(compare, seed, 150) < 120
    record_fault('wrong_weights', 150)


@pytest.mark.parametrize('elsewhere', ELSEWHERE)
@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
@torch.no_grad()
def test_numbers_that_are_not_in_a_tensors_own_memory(kind, elsewhere, record_fault):
    """Weights without memory, or with a shared memory: for every number of dimensions alone, and the image."""
    model, x = make_model(kind).eval(), torch.randn(1, 3, 36, 40)
    expected = model(x)
    assert relative_error(model(ELSEWHERE[elsewhere](x)), expected) < 1e-5  # torch computes the layers
    for dim in (1, 2, 4):  # norms and biases, linear layers, the patch embedding
        weights = {name: value for name, value in model.named_parameters() if value.dim() == dim}
        ours = functional_call(model, {name: ELSEWHERE[elsewhere](value) for name, value in weights.items()}, (x,))
        assert relative_error(ours, expected) < 1e-5
    record_fault('wrong_weights', 3)


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
def test_saved_tensors_at_odd_addresses(kind):
    """Hooks of saved tensors may keep bytes, also those that a wide block stores for the backward pass."""
    torch.manual_seed(0)
    sizes = dict(embed_dims=192, depths=(1, 2), num_heads=(6, 12), strides=(4, 2), out_indices=(1,))
    model, x = kind(**sizes, drop_path_rate=0.0).train(), torch.randn(1, 3, 40, 50)
    moved, results = [], []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.detach(), lambda t: moved.append(1) or at_an_odd_address(t)
    )
    for mode in (nullcontext(), hooks):
        with mode:
            (y,) = model(x)
        results.append(torch.autograd.grad(y.sin().sum(), list(model.parameters())))
    assert len(moved) > 20
    assert all(map(torch.equal, *results))
