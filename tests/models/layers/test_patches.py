"""Patch embedding and merging equal the literal algorithms, outputs and gradients, by the library and by torch."""

import pytest
import torch
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from swin_backbone.models.layers import PatchEmbed, PatchMerging

sizes = dict(batch=st.integers(1, 3), height=st.integers(1, 23), width=st.integers(1, 23))
common = dict(
    norm=st.sampled_from([None, dict(type='LN')]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    backend=st.sampled_from(['auto', 'torch']),
)


def assert_equal_with_gradients(layer, literal, x, backend, dtype):
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    layer.backend, x = backend, x.to(dtype).requires_grad_()
    layer.to(dtype)
    results = []
    for y in (layer(x), literal(layer, x)):
        slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        results.append([y, *torch.autograd.grad((y * slope).sum(), [x, *layer.parameters()])])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), results[0][0])


@settings(max_examples=80)
@given(**sizes, **common, patch=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_embedding_equals_unfold_and_linear(batch, height, width, patch, norm, dtype, backend):
    layer, image = PatchEmbed(3, 8, patch, norm), torch.randn(batch, 3, height, width)
    assert_equal_with_gradients(layer, reference.patch_embedding, image, backend, dtype)


@settings(max_examples=80)
@given(**sizes, **common, post_norm=st.booleans())
def test_merging_equals_unfold_and_linear(batch, height, width, norm, post_norm, dtype, backend):
    layer, x_BHWC = PatchMerging(8, 16, 2, norm, post_norm), torch.randn(batch, height, width, 8)
    assert_equal_with_gradients(layer, reference.patch_merging, x_BHWC, backend, dtype)


@pytest.mark.parametrize(
    'exchange', [lambda conv: nn.Identity(), lambda conv: nn.Conv2d(3, 8, 4, 4, groups=1, padding=2)]
)
def test_another_projection_is_called(exchange):
    embed = PatchEmbed(3, 8, (4, 4), None)
    embed.projection = exchange(embed.projection)
    image = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(embed(image), embed.projection(image).permute(0, 2, 3, 1))
