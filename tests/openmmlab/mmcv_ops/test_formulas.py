"""Operators that mmcv has only for GPUs: outputs and gradients equal plain formulas."""

import mmcv.ops
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from operator_calls import normal, operators_of, rng_of

from swin_backbone.openmmlab.mmcv_ops import ext

ALPHA = 0.25
CLOSE = dict(rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def _our_operators():
    with operators_of(ext):
        yield


def assert_equal_with_gradients(ours, formula, inputs, **tolerance):
    """Compare two functions of the inputs: outputs, and gradients for a drawn gradient."""
    results = []
    for function in (ours, formula):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = function(*leaves)
        results.append([out, *torch.autograd.grad(out, leaves, normal(rng_of(3), *out.shape, dtype=out.dtype))])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('gamma', [0.0, 1.5, 2.0])
def test_sigmoid_focal_loss(gamma, weighted):
    target = torch.tensor([0, 1, 2, 3, 4, 4, 0])  # a target of 4 is no class
    weight = torch.rand(4) if weighted else None
    if weighted:
        target = target.clamp(max=3)

    def focal(x):
        """The paper's formula, for the sigmoid."""
        right = F.one_hot(target, 5)[:, :4]
        p = torch.where(right == 1, x.sigmoid(), 1 - x.sigmoid())
        loss = -torch.where(right == 1, ALPHA, 1 - ALPHA) * (1 - p) ** gamma * p.log()
        return loss * weight[target][:, None] if weighted else loss

    def ours(x):
        return mmcv.ops.sigmoid_focal_loss(x, target, gamma, ALPHA, weight, 'none')

    assert_equal_with_gradients(ours, focal, [normal(rng_of(1), 7, 4)], **CLOSE)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_multi_scale_deformable_attention(dtype):
    """mmcv's own function for CPUs is the formula. Sums of half precision are in float32."""
    rng, shapes, starts = rng_of(2), torch.tensor([[3, 5], [2, 1]]), torch.tensor([0, 15])
    value, share = normal(rng, 2, 17, 3, 4).to(dtype), normal(rng, 2, 6, 3, 2, 2).to(dtype)
    places = torch.from_numpy(rng.uniform(-0.3, 1.3, (2, 6, 3, 2, 2, 2))).to(dtype)

    def ours(value, places, share):
        return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, places, share, 64)

    def formula(value, places, share):
        return multi_scale_deformable_attn_pytorch(value.float(), shapes, places.float(), share.float()).to(dtype)

    assert_equal_with_gradients(ours, formula, [value, places, share])


def test_offsets_of_a_larger_map():
    """DyHead passes them. mmcv's kernel reads the first values of each image in the shape of the output."""
    rng = rng_of(9)
    x, weight, bias = normal(rng, 2, 4, 4, 5), normal(rng, 4, 4, 3, 3), normal(rng, 4)
    offset, mask = normal(rng, 2, 18, 8, 10), normal(rng, 2, 9, 8, 10).sigmoid()

    def of_larger(x, offset, mask, weight, bias):
        return mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, bias, 1, 1)

    def of_first_values(x, offset, mask, weight, bias):
        offset, mask = offset.flatten(1)[:, :360].view(2, 18, 4, 5), mask.flatten(1)[:, :180].view(2, 9, 4, 5)
        return mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, bias, 1, 1)

    assert_equal_with_gradients(of_larger, of_first_values, [x, offset, mask, weight, bias])


@pytest.mark.parametrize(('kernel', 'groups', 'scale'), [(1, 1, 1), (3, 2, 2), (5, 1, 3)])
def test_carafe(kernel, groups, scale):
    rng = rng_of(6)
    inputs = [normal(rng, 2, 4, 3, 5), normal(rng, 2, groups * kernel**2, 3 * scale, 5 * scale)]

    def formula(x, masks):
        padded, out = F.pad(x, [kernel // 2] * 4), torch.zeros(2, 4, 3 * scale, 5 * scale)
        for c, y, z in np.ndindex(*out.shape[1:]):
            around = padded[:, c, y // scale : y // scale + kernel, z // scale : z // scale + kernel].flatten(1)
            first = c // (4 // groups) * kernel**2
            out[:, c, y, z] = (around * masks[:, first : first + kernel**2, y, z]).sum(1)
        return out

    def ours(x, masks):
        return mmcv.ops.carafe(x, masks, kernel, groups, scale)

    assert_equal_with_gradients(ours, formula, inputs, **CLOSE)


@pytest.mark.parametrize(('kernel', 'padding'), [((3, 3), (1, 1)), ((1, 3), (0, 1)), ((3, 3), (0, 0))])
def test_masked_convolution(kernel, padding):
    rng = rng_of(7)
    x, weight, bias = normal(rng, 1, 3, 6, 5), normal(rng, 4, 3, *kernel), normal(rng, 4)
    whole, mask = F.conv2d(x, weight, bias, padding=padding), torch.zeros(1, 6, 5)
    rows, columns = torch.from_numpy(rng.integers(0, whole.shape[2:], (7, 2))).unbind(1)
    mask[0, rows, columns] = 1
    expected = whole * mask[:, : whole.shape[2], : whole.shape[3]]
    torch.testing.assert_close(mmcv.ops.masked_conv2d(x, mask, weight, bias, padding), expected, **CLOSE)
