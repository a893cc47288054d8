"""Patch embedding, patch merging and output norms by the compiled operators are torch's."""

import torch
import torch.nn.functional as F
from blocks import rms
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone import native

sides = st.integers(1, 40)
maps = st.tuples(st.integers(1, 2), sides, sides, st.sampled_from([8, 24, 96]))


def close(ours, truth, dtype):
    if dtype == torch.float32:
        torch.testing.assert_close(ours, truth, atol=2e-5, rtol=0)
    else:
        assert rms(ours - truth) < 6e-3 * max(1, rms(truth))


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.integers(1, 2), sides, sides), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.data())
def test_embedding_is_the_convolution_and_its_norm(dtype, size, patch, data):
    (B, H, W), channels, C = size, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([8, 56, 96]))
    image = torch.randn(B, channels, H, W)
    weight, bias, norm = torch.randn(C, channels, *patch), torch.randn(C), data.draw(st.booleans())
    weight /= weight[0].numel() ** 0.5
    affine = (1 + 0.1 * torch.randn(C), torch.randn(C)) if norm else (None, None)
    truth = F.conv2d(F.pad(image, (0, -W % patch[1], 0, -H % patch[0])), weight, bias, stride=patch).permute(0, 2, 3, 1)
    truth = F.layer_norm(truth, (C,), *affine) if norm else truth
    if data.draw(st.booleans()):
        image = image.contiguous(memory_format=torch.channels_last)
    ours = native.embed(image, dtype, weight, bias, *affine, 1e-5 if norm else None, native.Packed())
    close(ours, truth, dtype)


@settings(max_examples=30, deadline=None)
@given(maps, st.booleans(), st.booleans())
def test_merging_is_unfold_norm_and_projection(dtype, size, norm, post_norm):
    (B, H, W, C), x = size, torch.randn(size)
    weight = torch.randn(2 * C, 4 * C) / (4 * C) ** 0.5
    normed = 2 * C if post_norm else 4 * C
    affine = (1 + 0.1 * torch.randn(normed), torch.randn(normed)) if norm else (None, None)
    padded = F.pad(x, (0, 0, 0, W % 2, 0, H % 2)).permute(0, 3, 1, 2)
    truth = F.unfold(padded, 2, stride=2).transpose(1, 2).view(B, -(-H // 2), -(-W // 2), 4 * C)
    for step in ('project', 'norm') if post_norm else ('norm', 'project'):
        if step == 'project':
            truth = F.linear(truth, weight)
        elif norm:
            truth = F.layer_norm(truth, (normed,), *affine)
    ours = native.merge(x, dtype, weight, *affine, 1e-5 if norm else None, post_norm, native.Packed())
    close(ours, truth, dtype)


@settings(max_examples=30, deadline=None)
@given(maps, st.booleans())
def test_output_norm_is_layer_norm_transposed(size, affine):
    x, C = torch.randn(size), size[-1]
    weights = (torch.randn(C), torch.randn(C)) if affine else (None, None)
    ours = native.output_norm(x, *weights, 1e-5)
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, F.layer_norm(x, (C,), *weights).permute(0, 3, 1, 2), atol=2e-5, rtol=0)
