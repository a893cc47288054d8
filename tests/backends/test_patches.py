"""Patch embedding and merging in strips of rows equal their modules at once, outputs and gradients."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from swin_backbone.backends import BACKENDS, Plan
from swin_backbone.backends.functions.patches import row_strips
from swin_backbone.models.layers import PatchEmbed, PatchMerging

sizes = dict(batch=st.integers(1, 3), height=st.integers(1, 23), width=st.integers(1, 23))
norms = st.sampled_from([None, dict(type='LN')])


@given(**sizes, patch=st.tuples(st.integers(1, 5), st.integers(1, 5)), tokens=st.integers(1, 40))
def test_each_row_is_read_and_written_once(batch, height, width, patch, tokens):
    strips = row_strips(torch.Size((batch, height, width, 3)), patch, tokens)
    out_height, out_width = -(-height // patch[0]), -(-width // patch[1])
    read, written = torch.zeros(batch, height), torch.zeros(batch, out_height)
    for rows in strips:
        read[rows.image, rows.rows] += 1
        written[rows.image, rows.out_rows] += 1
        count = rows.out_rows.stop - rows.out_rows.start
        assert count == 1 or count * out_width <= tokens
    assert (read == 1).all()
    assert (written == 1).all()


def assert_equal_with_gradients(fast, literal, x):
    x = x.double().requires_grad_()
    results = []
    for layer in (fast, literal):
        y = layer(x)
        slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        gradients = torch.autograd.grad((y * slope).sum(), [x, *layer.parameters()])
        with torch.no_grad():
            torch.testing.assert_close(layer(x), y)
        results.append([y, *gradients])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


class InStrips(nn.Module):
    """A layer that runs in strips."""

    def __init__(self, layer, strip_tokens):
        super().__init__()
        torch.manual_seed(0)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        self.layer, self.plan = layer.double(), Plan(BACKENDS['eager'], strip_tokens=strip_tokens)

    def forward(self, x):
        return self.layer(x, self.plan)


@pytest.mark.parametrize(('height', 'width'), [(16, 24), (17, 22), (3, 1)])
def test_embedding_as_convolution_as_unfold_and_linear_and_as_strips_is_one_number(height, width):
    class Convolution(PatchEmbed):
        def forward(self, image_BCHW):
            image_BCHW = F.pad(image_BCHW, (0, -width % 4, 0, -height % 4))
            y_BCHW = F.conv2d(image_BCHW, self.projection.weight, self.projection.bias, stride=4)
            return self.norm(y_BCHW.permute(0, 2, 3, 1))

    class UnfoldAndLinear(PatchEmbed):
        def forward(self, image_BCHW):
            image_BCHW = F.pad(image_BCHW, (0, -width % 4, 0, -height % 4))
            patches_BTP = F.unfold(image_BCHW, 4, stride=4).transpose(1, 2)
            y_BTC = F.linear(patches_BTP, self.projection.weight.flatten(1), self.projection.bias)
            return self.norm(y_BTC).unflatten(1, (-(-height // 4), -(-width // 4)))

    ours = InStrips(PatchEmbed(3, 8, (4, 4), dict(type='LN')), strip_tokens=7)
    x = torch.randn(2, 3, height, width)
    for kind in (Convolution, UnfoldAndLinear):
        literal = kind(3, 8, (4, 4), dict(type='LN')).double()
        literal.load_state_dict(ours.layer.state_dict())
        assert_equal_with_gradients(ours, literal, x)
        whole = PatchEmbed(3, 8, (4, 4), dict(type='LN')).double()  # the convolution of torch, as on a GPU
        whole.load_state_dict(ours.layer.state_dict())
        assert_equal_with_gradients(whole, literal, x)


def by_modules(layer):
    """The same layer, each module called."""
    literal = copy.deepcopy(layer)
    literal.forward = functools.partial(type(layer).forward, literal)  # without a plan
    return literal


@settings(deadline=None, max_examples=60)
@given(**sizes, patch=st.tuples(st.integers(1, 5), st.integers(1, 5)), tokens=st.integers(1, 40), norm=norms)
def test_embedding_equals_its_modules(batch, height, width, patch, tokens, norm):
    layer = InStrips(PatchEmbed(3, 8, patch, norm), tokens)
    assert_equal_with_gradients(layer, by_modules(layer.layer), torch.randn(batch, 3, height, width))


@settings(deadline=None, max_examples=60)
@given(**sizes, tokens=st.integers(1, 40), norm=norms, post_norm=st.booleans())
def test_merging_equals_its_modules(batch, height, width, tokens, norm, post_norm):
    layer = InStrips(PatchMerging(8, 16, 2, norm, post_norm), tokens)
    assert_equal_with_gradients(layer, by_modules(layer.layer), torch.randn(batch, height, width, 8))


@pytest.mark.parametrize(
    'exchange', [lambda conv: nn.Identity(), lambda conv: nn.Conv2d(3, 8, 4, 4, groups=1, padding=2)]
)
def test_another_projection_is_called(exchange):
    embed = PatchEmbed(3, 8, (4, 4), None)
    embed.projection = exchange(embed.projection)
    image = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(
        embed(image, Plan(BACKENDS['eager'], strip_tokens=5)), embed.projection(image).permute(0, 2, 3, 1)
    )


def test_an_image_that_wants_no_gradient_gets_none_computed():
    embed, image = PatchEmbed(3, 8, (4, 4), dict(type='LN')), torch.randn(1, 3, 40, 40)
    with torch.autograd.profiler.profile() as profile:
        embed(image, Plan(BACKENDS['eager'], strip_tokens=5)).sum().backward()
    backward = [event.name for event in profile.function_events if event.name == 'mkldnn::_linear_pointwise']
    assert embed.projection.weight.grad is not None
    assert len(backward) == 2 * len(row_strips(torch.Size((1, 40, 40, 3)), (4, 4), 5))  # forward, and again
