"""Operators that mmcv has for GPUs alone: outputs and gradients are those of their formulas, written plainly."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_calls import normal, regions, rng_of

from swin_backbone.mmcv_ops import ext

GAMMA, ALPHA = 2.0, 0.25
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


@pytest.mark.parametrize('weighted', [False, True])
def test_softmax_focal_loss(weighted):
    x, target = normal(rng_of(2), 6, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, -1, 1])
    weight = torch.rand(4) if weighted else torch.empty(0)
    p = x.softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
    loss = -ALPHA * (1 - p) ** GAMMA * p.log() * (weight[target.clamp(min=0)] if weighted else 1) * (target >= 0)
    out, buffer, grad = torch.zeros(6), torch.zeros(6), torch.zeros(6, 4)
    probabilities = x.detach().softmax(1)
    ext.softmax_focal_loss_forward(probabilities, target, weight, out, gamma=GAMMA, alpha=ALPHA)
    ext.softmax_focal_loss_backward(probabilities, target, weight, buffer, grad, gamma=GAMMA, alpha=ALPHA)
    torch.testing.assert_close(out, loss, **CLOSE)
    torch.testing.assert_close(grad, gradients(loss, x, torch.ones_like(loss))[0], **CLOSE)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 999), levels=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3),
    batch=st.integers(1, 2), heads=st.integers(1, 3), queries=st.integers(1, 4), points=st.integers(1, 3),
)  # fmt: skip
def test_multi_scale_deformable_attention(seed, levels, batch, heads, queries, points):
    rng = rng_of(seed)
    shapes = torch.tensor(levels)
    sizes = shapes.prod(1)
    starts = sizes.cumsum(0) - sizes
    value = normal(rng, batch, int(sizes.sum()), heads, 4).requires_grad_()
    where = torch.from_numpy(rng.uniform(-0.3, 1.3, (batch, queries, heads, len(levels), points, 2))).float()
    where.requires_grad_()
    share = normal(rng, batch, queries, heads, len(levels), points).requires_grad_()

    wanted = 0
    for level, (height, width) in enumerate(levels):
        part = value[:, starts[level] : starts[level] + height * width].permute(0, 2, 3, 1)
        grid = 2 * where[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
        sampled = F.grid_sample(part.reshape(batch * heads, 4, height, width), grid, align_corners=False)
        wanted = wanted + (sampled * share[:, :, :, level].transpose(1, 2).flatten(0, 1)[:, None]).sum(-1)
    wanted = wanted.view(batch, heads * 4, queries).transpose(1, 2)

    out = ext.ms_deform_attn_forward(value.detach(), shapes, starts, where.detach(), share.detach(), im2col_step=64)
    torch.testing.assert_close(out, wanted, **CLOSE)
    grad_out = normal(rng, *out.shape)
    grads = [torch.zeros_like(of) for of in (value, where, share)]
    ext.ms_deform_attn_backward(
        value.detach(), shapes, starts, where.detach(), share.detach(), grad_out, *grads, im2col_step=64
    )
    for ours, theirs in zip(grads, gradients(wanted, (value, where, share), grad_out)):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 999), number=st.integers(0, 4), size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    bins=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)  # fmt: skip
def test_roi_pool(seed, number, size, bins):
    rng = rng_of(seed)
    x, rois, scale = normal(rng, 2, 2, *size), regions(rng, number, 2, size=4 * max(size)), 0.25
    wanted, at = torch.zeros(number, 2, *bins), torch.full((number, 2, *bins), -1, dtype=torch.int32)
    grad_out, grad_wanted = normal(rng, *wanted.shape), torch.zeros_like(x)
    for r, (image, x1, y1, x2, y2) in enumerate(rois.numpy().astype(np.float32)):
        edges = np.float32([x1, y1, x2 + 1, y2 + 1]) * np.float32(scale)
        if edges[2] <= edges[0] or edges[3] <= edges[1]:
            continue
        step = [(edges[3] - edges[1]) / np.float32(bins[0]), (edges[2] - edges[0]) / np.float32(bins[1])]
        for i, j in np.ndindex(*bins):
            top, bottom = np.clip([np.floor(i * step[0] + edges[1]), np.ceil((i + 1) * step[0] + edges[1])], 0, size[0])
            left, right = np.clip([np.floor(j * step[1] + edges[0]), np.ceil((j + 1) * step[1] + edges[0])], 0, size[1])
            for c in range(2):
                pixels = [(y, z) for y in range(int(top), int(bottom)) for z in range(int(left), int(right))]
                if pixels:
                    y, z = max(pixels, key=lambda p: x[int(image), c, p[0], p[1]])
                    wanted[r, c, i, j], at[r, c, i, j] = x[int(image), c, y, z], y * size[1] + z
                    grad_wanted[int(image), c, y, z] += grad_out[r, c, i, j]
    out, argmax, grad = torch.zeros_like(wanted), torch.zeros_like(at), torch.zeros_like(x)
    pooled = dict(pooled_height=bins[0], pooled_width=bins[1], spatial_scale=scale)
    ext.roi_pool_forward(x, rois, out, argmax, **pooled)
    ext.roi_pool_backward(grad_out, rois, argmax, grad, **pooled)
    assert torch.equal(out, wanted)
    assert torch.equal(argmax, at)
    torch.testing.assert_close(grad, grad_wanted)


def bilinear(plane, y, x):
    """A sample as RoIAlign takes it: clamped up to one pixel outside, 0 beyond."""
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return plane[0, 0] * 0
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    dy, dx = y - y0, x - x0
    above = plane[y0, x0] * (1 - dx) + plane[y0, x1] * dx
    below = plane[y1, x0] * (1 - dx) + plane[y1, x1] * dx
    return above * (1 - dy) + below * dy


@pytest.mark.parametrize('pool_size', [1, 5])
def test_border_align(pool_size):
    rng = rng_of(5)
    x = normal(rng, 2, 8, 6, 7).requires_grad_()
    boxes = torch.stack([regions(rng, 5, 1, size=8)[:, 1:] for _ in range(2)])
    wanted = torch.zeros(2, 2, 5, 4)
    for b, c, n in np.ndindex(2, 2, 5):
        x1, y1, x2, y2 = boxes[b, n].tolist()
        for side in range(4):
            steps = [k / pool_size for k in range(pool_size + 1)]
            at = [
                [(y1, x1 + k * (x2 - x1)) for k in steps],
                [(y1 + k * (y2 - y1), x1) for k in steps],
                [(y2, x2 - k * (x2 - x1)) for k in steps],
                [(y2 - k * (y2 - y1), x2) for k in steps],
            ][side]
            wanted[b, c, n, side] = torch.stack([bilinear(x[b, side * 2 + c], *point) for point in at]).max(0)[0]
    out, argmax, grad = torch.zeros(wanted.shape), torch.zeros(wanted.shape, dtype=torch.int32), torch.zeros_like(x)
    ext.border_align_forward(x.detach(), boxes, out, argmax, pool_size=pool_size)
    torch.testing.assert_close(out, wanted, **CLOSE)
    grad_out = normal(rng, *out.shape)
    ext.border_align_backward(grad_out, boxes, argmax, grad, pool_size=pool_size)
    torch.testing.assert_close(grad, gradients(wanted, x, grad_out)[0], **CLOSE)


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
