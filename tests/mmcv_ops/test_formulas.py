"""Operators that mmcv has only for GPUs: outputs and gradients equal plain formulas."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from operator_calls import normal, rng_of

from swin_backbone.mmcv_ops import ext

ALPHA = 0.25
CLOSE = dict(rtol=1e-4, atol=1e-5)


def gradients(out, of, grad):
    return torch.autograd.grad(out, of, grad)


def focal(x, target, gamma, alpha):
    """The paper's formula, for the sigmoid."""
    right = F.one_hot(target, x.shape[1] + 1)[:, : x.shape[1]]
    p = torch.where(right == 1, x.sigmoid(), 1 - x.sigmoid())
    return -torch.where(right == 1, alpha, 1 - alpha) * (1 - p) ** gamma * p.log()


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('gamma', [0.0, 1.5, 2.0])
def test_sigmoid_focal_loss(gamma, weighted):
    rng = rng_of(1)
    x, target = normal(rng, 7, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 4, 0])
    weight = torch.rand(4) if weighted else torch.empty(0)
    if weighted:
        target = target.clamp(max=3)
    of_row = weight[target][:, None] if weighted else 1
    loss = focal(x, target, gamma, ALPHA) * of_row
    out, grad = torch.zeros(7, 4), torch.zeros(7, 4)
    ext.sigmoid_focal_loss_forward(x.detach(), target, weight, out, gamma=gamma, alpha=ALPHA)
    ext.sigmoid_focal_loss_backward(x.detach(), target, weight, grad, gamma=gamma, alpha=ALPHA)
    torch.testing.assert_close(out, loss, **CLOSE)
    torch.testing.assert_close(grad, gradients(loss, x, torch.ones_like(loss))[0], **CLOSE)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_multi_scale_deformable_attention(dtype):
    """mmcv's own function for CPUs is the formula. Sums of half precision are in float32."""
    rng, shapes, starts = rng_of(2), torch.tensor([[3, 5], [2, 1]]), torch.tensor([0, 15])
    value, share = normal(rng, 2, 17, 3, 4).to(dtype), normal(rng, 2, 6, 3, 2, 2).to(dtype)
    where = torch.from_numpy(rng.uniform(-0.3, 1.3, (2, 6, 3, 2, 2, 2))).to(dtype)
    inputs = [x.float().requires_grad_() for x in (value, where, share)]
    wanted = multi_scale_deformable_attn_pytorch(inputs[0], shapes, *inputs[1:])
    out = ext.ms_deform_attn_forward(value, shapes, starts, where, share, im2col_step=64)
    assert torch.equal(out, wanted.to(dtype))
    grads = [torch.zeros_like(x) for x in (value, where, share)]
    ext.ms_deform_attn_backward(value, shapes, starts, where, share, out, *grads, im2col_step=64)
    for ours, theirs in zip(grads, gradients(wanted, inputs, out.float())):
        torch.testing.assert_close(ours, theirs.to(dtype))


def test_offsets_of_a_larger_map():
    """DyHead passes them. mmcv's kernel reads the first values of each image in the shape of the output."""
    rng = rng_of(9)
    x, weight, bias = normal(rng, 2, 4, 4, 5), normal(rng, 4, 4, 3, 3), normal(rng, 4)
    offset, mask = normal(rng, 2, 18, 8, 10), normal(rng, 2, 9, 8, 10).sigmoid()
    settings = {f'{name}_{axis}': 1 for name in ('stride', 'pad', 'dilation') for axis in 'hw'}
    settings.update(kernel_h=3, kernel_w=3, group=1, deformable_group=1, with_bias=True)
    empty, grad_out = x.new_empty(0), normal(rng, 2, 4, 4, 5)
    results = []
    for by, share in (
        (offset, mask),
        (offset.flatten(1)[:, :360].view(2, 18, 4, 5), mask.flatten(1)[:, :180].view(2, 9, 4, 5)),
    ):
        out, grads = torch.zeros(2, 4, 4, 5), [torch.zeros_like(of) for of in (x, weight, bias, by, share)]
        ext.modulated_deform_conv_forward(x, weight, bias, empty, by, share, out, empty, **settings)
        ext.modulated_deform_conv_backward(x, weight, bias, empty, by, share, empty, *grads, grad_out, **settings)
        results.append([out, *grads[:3], *(grad.flatten(1)[:, :180] for grad in grads[3:])])
    for larger, equal in zip(*results):
        torch.testing.assert_close(larger, equal)


@pytest.mark.parametrize(('kernel', 'groups', 'scale'), [(1, 1, 1), (3, 2, 2), (5, 1, 3)])
def test_carafe(kernel, groups, scale):
    rng = rng_of(6)
    x = normal(rng, 2, 4, 3, 5).requires_grad_()
    masks = normal(rng, 2, groups * kernel**2, 3 * scale, 5 * scale).requires_grad_()
    reach = kernel // 2
    padded = F.pad(x, [reach] * 4)
    wanted = torch.zeros(2, 4, 3 * scale, 5 * scale)
    for c, y, z in np.ndindex(*wanted.shape[1:]):
        around = padded[:, c, y // scale : y // scale + kernel, z // scale : z // scale + kernel].flatten(1)
        first = c // (4 // groups) * kernel**2
        wanted[:, c, y, z] = (around * masks[:, first : first + kernel**2, y, z]).sum(1)
    grad_out = normal(rng, *wanted.shape)
    theirs = gradients(wanted, (x, masks), grad_out)
    settings = dict(kernel_size=kernel, group_size=groups, scale_factor=scale)

    out, kept, scratch = torch.zeros(wanted.shape), torch.zeros_like(x), [torch.zeros(0)] * 4
    ext.carafe_forward(x.detach(), masks.detach(), kept, *scratch[:2], out, **settings)
    torch.testing.assert_close(out, wanted, **CLOSE)
    grads = torch.zeros_like(x), torch.zeros_like(masks)
    ext.carafe_backward(grad_out, kept, masks.detach(), *scratch, *grads, **settings)
    for ours, other in zip(grads, theirs):
        torch.testing.assert_close(ours, other, **CLOSE)


@pytest.mark.parametrize(('kernel', 'padding'), [((3, 3), (1, 1)), ((1, 3), (0, 1)), ((3, 3), (0, 0))])
def test_masked_convolution(kernel, padding):
    rng = rng_of(7)
    x, weight = normal(rng, 1, 3, 6, 5), normal(rng, 4, 3, *kernel)
    wanted = F.conv2d(x, weight, padding=padding)
    rows, columns = torch.from_numpy(rng.integers(0, wanted.shape[2:], (7, 2))).unbind(1)
    col = torch.zeros(3 * kernel[0] * kernel[1], 7)
    settings = dict(kernel_h=kernel[0], kernel_w=kernel[1], pad_h=padding[0], pad_w=padding[1])
    ext.masked_im2col_forward(x, rows, columns, col, **settings)
    out = torch.zeros_like(wanted)
    height, width = wanted.shape[2:]
    ext.masked_col2im_forward(weight.flatten(1) @ col, rows, columns, out, height=height, width=width, channels=4)
    there = torch.zeros(height, width, dtype=torch.bool)
    there[rows, columns] = True
    torch.testing.assert_close(out, wanted * there, **CLOSE)
