"""Patch embedding, patch merging and output norms by the compiled operators: results and gradients equal torch's."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers.backends.native_blocks import embed, merge, output_norm, rms
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.backends.weight_cache import WeightCache

sides = st.integers(1, 40)
maps = st.tuples(st.integers(1, 2), sides, sides, st.sampled_from([8, 24, 96]))


def assert_same(ours, truth, tensors, dtype):
    """Compare the output, and the gradients of all tensors except None."""
    wanted = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
    y, true_y = ours(*tensors), truth(*tensors)
    assert y.is_contiguous()
    grad = torch.randn_like(y)
    found, true = torch.autograd.grad(y, wanted, grad), torch.autograd.grad(true_y, wanted, grad)
    for i, (ours, truth) in enumerate(zip((y, *found), (true_y, *true))):
        if dtype == torch.float32:
            torch.testing.assert_close(ours, truth, atol=2e-5 * max(1, truth.abs().max().item()), rtol=0)
        else:  # of gradients of few numbers, chance makes the error larger
            assert rms(ours - truth) < (3e-2 if i else 6e-3) * max(1, rms(truth))


def affine(has_norm, channels):
    return (1 + 0.1 * torch.randn(channels), torch.randn(channels)) if has_norm else (None, None)


def embedded(image, weight, bias, *norm, eps):
    patch = weight.shape[2:]
    padded = F.pad(image, (0, -image.shape[3] % patch[1], 0, -image.shape[2] % patch[0]))
    tokens = F.conv2d(padded, weight, bias, stride=patch).permute(0, 2, 3, 1)
    return tokens if eps is None else F.layer_norm(tokens, tokens.shape[3:], *norm, eps)


def merged(x, weight, *norm, eps, post_norm):
    B, H, W, C = x.shape
    padded = F.pad(x, (0, 0, 0, W % 2, 0, H % 2)).permute(0, 3, 1, 2)
    tokens = F.unfold(padded, 2, stride=2).transpose(1, 2).view(B, -(-H // 2), -(-W // 2), 4 * C)
    for step in ('project', 'norm') if post_norm else ('norm', 'project'):
        if step == 'project':
            tokens = F.linear(tokens, weight)
        elif eps is not None:
            tokens = F.layer_norm(tokens, tokens.shape[3:], *norm, eps)
    return tokens


def normalised(x, *norm):
    return F.layer_norm(x, x.shape[3:], *norm, 1e-5).permute(0, 3, 1, 2)


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(1, 2), sides, sides), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.data())
def test_embedding_is_the_convolution_and_its_norm(dtype, size, patch, data):
    (B, H, W), channels, C = size, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([8, 56, 96]))
    image = torch.randn(B, channels, H, W)
    weight, bias, norm = torch.randn(C, channels, *patch), torch.randn(C), data.draw(st.booleans())
    weight /= weight[0].numel() ** 0.5
    eps = 1e-5 if norm else None
    if data.draw(st.booleans()):
        image = image.contiguous(memory_format=torch.channels_last)

    def ours(image, weight, bias, *norm):
        return embed(image, weight, bias, *norm, eps=eps, dtype=dtype)

    assert_same(ours, partial(embedded, eps=eps), (image, weight, bias, *affine(norm, C)), dtype)


@settings(max_examples=30, deadline=None)
@given(maps, st.booleans(), st.booleans())
def test_merging_is_unfold_norm_and_projection(dtype, size, norm, post_norm):
    C, eps = size[-1], 1e-5 if norm else None
    weight = torch.randn(2 * C, 4 * C) / (4 * C) ** 0.5
    tensors = torch.randn(size), weight, *affine(norm, 2 * C if post_norm else 4 * C)

    def ours(x, weight, *norm):
        return merge(x, weight, *norm, eps=eps, post_norm=post_norm, dtype=dtype)

    assert_same(ours, partial(merged, eps=eps, post_norm=post_norm), tensors, dtype)


@settings(max_examples=30, deadline=None)
@given(maps, st.booleans())
def test_output_norm_is_layer_norm_transposed(size, norm):
    tensors = torch.randn(size), *affine(norm, size[-1])
    assert_same(output_norm, normalised, tensors, torch.float32)


def operators(dtype=torch.float32):
    """Return operators, truths and tensors. The sizes need several threads and strips of tokens."""
    cache, eps = WeightCache(), 1e-5
    return {
        'embed': (
            partial(embed, eps=eps, dtype=dtype, cache=cache),
            partial(embedded, eps=eps),
            (torch.randn(1, 3, 300, 300), torch.randn(96, 3, 4, 4) / 7, torch.randn(96), *affine(True, 96)),
        ),
        'merge': (
            partial(merge, eps=eps, dtype=dtype, cache=cache),
            partial(merged, eps=eps, post_norm=False),
            (torch.randn(2, 75, 75, 96), torch.randn(192, 384) / 20, *affine(True, 384)),
        ),
        'output_norm': (
            output_norm,
            normalised,
            (torch.randn(2, 75, 75, 96), *affine(True, 96)),
        ),
    }


@pytest.mark.parametrize('name', ['embed', 'merge', 'output_norm'])
def test_gradients_are_the_same_for_any_threads_and_at_every_run(name, dtype):
    ours, truth, tensors = operators(dtype)[name]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert_same(ours, truth, tensors, dtype)
            y = ours(*tensors)
            first, again = (torch.autograd.grad(y, tensors, torch.ones_like(y), retain_graph=True) for _ in range(2))
            assert all(torch.equal(a, b) for a, b in zip(first, again))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize('name', ['embed', 'merge', 'output_norm'])
def test_inputs_alone_are_stored(name):
    ours, _, tensors = operators()[name]
    tensors, stored = [tensor.requires_grad_() for tensor in tensors], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: stored.append(t) or t, lambda t: t):
        ours(*tensors)
    assert {t.data_ptr() for t in stored} == {t.data_ptr() for t in tensors}
