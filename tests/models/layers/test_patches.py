"""Patch embedding, patch merging and output norms equal the literal algorithms: outputs and gradients.

The compiled library and torch compute, in several dtypes and with several numbers of threads.
"""

import pytest
import torch
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from swin_backbone.kernels.native.availability import find_reason_against_dtype
from swin_backbone.models.layers import PatchEmbed, PatchMerging
from swin_backbone.models.pyramid import SwinStage

needs_library = pytest.mark.skipif(
    find_reason_against_dtype(torch.float32) is not None, reason='the library does not compute float32 here'
)
sizes = dict(batch=st.integers(1, 3), height=st.integers(1, 40), width=st.integers(1, 40))
common = dict(
    channels=st.sampled_from([8, 24, 96]),
    norm=st.sampled_from([None, dict(type='LN')]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    backend=st.sampled_from(['auto', 'torch']),
)


def by_layer(layer, x):
    return layer(x)


def output_norm(norm, x_BHWC):
    return SwinStage.normalise_output(norm, x_BHWC, norm)  # of the stage, it reads the backend alone


def literal_output_norm(norm, x_BHWC):
    return reference.layer_norm(x_BHWC, norm).permute(0, 3, 1, 2)


def equal_results(layer, run, literal, x, backend, dtype):
    """Return the output and the gradients of x and weights, equal to those of `literal`. Autocast gives bfloat16."""
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    is_half = dtype is torch.bfloat16
    layer.backend, x = backend, x.to(torch.float32 if is_half else dtype).requires_grad_()
    layer.to(x.dtype)
    results = []
    for compute, has_autocast in ((run, is_half), (literal, False)):
        with torch.autocast('cpu', torch.bfloat16, enabled=has_autocast):
            y = compute(layer, x)
        slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
        results.append([y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], slope)])
    for index, (one, other) in enumerate(zip(*results)):
        if is_half:  # of gradients of few numbers, chance makes the error larger
            share = 6e-3 if index == 0 else 0.1 if other.numel() < 256 else 3e-2
            most = share * max(1, other.square().mean().sqrt())
            assert (one - other).square().mean().sqrt() < most
        else:
            tolerance = 1e-10 if dtype == torch.float64 else 2e-5
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(1, float(other.abs().max())))
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16, enabled=is_half):
        torch.testing.assert_close(run(layer, x), results[0][0])
    return results[0]


@settings(max_examples=80)
@given(**sizes, **common, patch=st.tuples(st.integers(1, 5), st.integers(1, 5)), in_channels=st.integers(1, 4))
def test_embedding_equals_unfold_and_linear(batch, height, width, channels, patch, in_channels, norm, dtype, backend):
    layer, image = PatchEmbed(in_channels, channels, patch, norm), torch.randn(batch, in_channels, height, width)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = image.contiguous(memory_format=memory_format)
        equal_results(layer, by_layer, reference.patch_embedding, x, backend, dtype)


@settings(max_examples=80)
@given(**sizes, **common, post_norm=st.booleans())
def test_merging_equals_unfold_and_linear(batch, height, width, channels, norm, post_norm, dtype, backend):
    layer = PatchMerging(channels, 2 * channels, 2, norm, post_norm)
    x_BHWC = torch.randn(batch, height, width, channels)
    equal_results(layer, by_layer, reference.patch_merging, x_BHWC, backend, dtype)


@settings(max_examples=30)
@given(**sizes, **{**common, 'norm': st.booleans()})
def test_output_norm_is_layer_norm_transposed(batch, height, width, channels, norm, dtype, backend):
    layer, x_BHWC = nn.LayerNorm(channels, elementwise_affine=norm), torch.randn(batch, height, width, channels)
    y_BCHW = equal_results(layer, output_norm, literal_output_norm, x_BHWC, backend, dtype)[0]
    assert y_BCHW.is_contiguous()


LARGE = {  # sizes that need several threads and strips of tokens
    'embedding': (
        lambda: PatchEmbed(3, 96, (4, 4), dict(type='LN')),
        *(by_layer, reference.patch_embedding, (1, 3, 300, 300)),
    ),
    'merging': (
        lambda: PatchMerging(96, 192, 2, dict(type='LN')),
        *(by_layer, reference.patch_merging, (2, 75, 75, 96)),
    ),
    'output norm': (lambda: nn.LayerNorm(96), output_norm, literal_output_norm, (2, 75, 75, 96)),
}


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name', LARGE)
def test_gradients_are_the_same_for_any_threads_and_at_every_run(name, dtype):
    make, run, literal, shape = LARGE[name]
    layer, x = make(), torch.randn(shape)
    for count in (1, 3):
        torch.set_num_threads(count)
        first, again = (equal_results(layer, run, literal, x, 'auto', dtype) for _ in range(2))
        assert all(map(torch.equal, first, again))


@needs_library
@pytest.mark.parametrize('name', LARGE)
def test_inputs_alone_are_stored(name):
    make, run, _, shape = LARGE[name]
    layer, x, stored = make(), torch.randn(shape, requires_grad=True), []
    layer.backend = 'native'
    with torch.autograd.graph.saved_tensors_hooks(lambda t: stored.append(t) or t, lambda t: t):
        run(layer, x)
    assert {t.data_ptr() for t in stored} == {t.data_ptr() for t in (x, *layer.parameters())}


@pytest.mark.parametrize(
    'exchange', [lambda conv: nn.Identity(), lambda conv: nn.Conv2d(3, 8, 4, 4, groups=1, padding=2)]
)
def test_another_projection_is_called(exchange):
    embed = PatchEmbed(3, 8, (4, 4), None)
    embed.projection = exchange(embed.projection)
    image = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(embed(image), embed.projection(image).permute(0, 2, 3, 1))
