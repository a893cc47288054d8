"""Calls of the functions of `mmcv._ext` with drawn inputs. Each case returns the written and the returned tensors.

As a program, this file stores the results of mmcv's compiled functions:

    python tests/mmcv_ops/operator_calls.py    # writes tests/mmcv_ops/figures.npz

numpy draws the inputs: its numbers are the same on every machine.
"""

from pathlib import Path

import numpy as np
import torch

from swin_backbone.mmcv_ops.rotated import corners

FIGURES = Path(__file__).with_name('figures.npz')


def rng_of(seed):
    return np.random.default_rng(seed)


def normal(rng, *shape, dtype=torch.float32):
    return torch.from_numpy(rng.normal(size=shape)).to(dtype)


def boxes(rng, number, size=100.0):
    """Upright boxes, some partly outside of (0, size), some equal, some without an area."""
    corners = rng.uniform(-0.1 * size, 1.1 * size, (number, 2, 2))
    found = np.concatenate([corners.min(1), corners.max(1)], 1)
    found[number // 2 :: 5] = np.round(found[number // 2 :: 5])
    found[1::7] = found[0] if number else 0
    found[3::11, 2] = found[3::11, 0]
    return torch.from_numpy(found).float()


def regions(rng, number, images, size=100.0):
    return torch.cat([torch.from_numpy(rng.integers(0, images, (number, 1))).float(), boxes(rng, number, size)], 1)


def rotated_boxes(rng, number):
    centre, size = rng.uniform(0, 60, (number, 2)), rng.uniform(1, 40, (number, 2))
    angle = rng.uniform(-3.2, 3.2, (number, 1))
    return torch.from_numpy(np.concatenate([centre, size, angle], 1)).float()


def quadrilaterals(rng, number):
    """Rectangles, because mmcv miscounts shared corners of other quadrilaterals."""
    return corners(rotated_boxes(rng, number)).flatten(1)


def scores(rng, number):
    """Scores with ties: every second score is rounded to tenths."""
    found = rng.uniform(0, 1, number)
    found[::2] = np.round(found[::2], 1)
    return torch.from_numpy(found).float()


def nms(ext, rng, number=60, threshold=0.5, offset=0):
    return [ext.nms(boxes(rng, number), scores(rng, number), iou_threshold=threshold, offset=offset)]


def softnms(ext, rng, number=40, threshold=0.3, sigma=0.5, min_score=0.05, method=1, offset=0):
    dets = torch.zeros(number, 5)
    chosen = ext.softnms(
        boxes(rng, number),
        scores(rng, number),
        dets,
        iou_threshold=threshold,
        sigma=sigma,
        min_score=min_score,
        method=method,
        offset=offset,
    )
    return [chosen, dets[: len(chosen)]]


def nms_match(ext, rng, number=40, threshold=0.5):
    dets = torch.cat([boxes(rng, number), scores(rng, number)[:, None]], 1)
    groups = ext.nms_match(dets, iou_threshold=threshold)
    return [
        torch.tensor([index for group in groups for index in group]),
        torch.tensor([len(group) for group in groups]),
    ]


def box_iou_rotated(ext, rng, number=12, others=9, mode=0, aligned=False, kind='rotated'):
    draw = rotated_boxes if kind == 'rotated' else quadrilaterals
    first, second = draw(rng, number), draw(rng, number if aligned else others)
    ious = torch.zeros(number if aligned else number * others)
    getattr(ext, f'box_iou_{"rotated" if kind == "rotated" else "quadri"}')(
        first, second, ious, mode_flag=mode, aligned=aligned
    )
    return [ious]


def nms_rotated(ext, rng, number=60, threshold=0.3, kind='rotated', labels=False):
    dets, score = (rotated_boxes if kind == 'rotated' else quadrilaterals)(rng, number), scores(rng, number)
    label = torch.from_numpy(rng.integers(0, 3, number)).float()
    if labels:
        dets = torch.cat([dets, label[:, None]], 1)
    order = score.sort(0, descending=True)[1]
    if kind == 'rotated':
        return [ext.nms_rotated(dets, score, order, dets[order], label, threshold, labels)]
    return [ext.nms_quadri(dets, score, order, dets[order], threshold, labels)]


def roi_align(
    ext, rng, number=8, size=(13, 17), bins=(3, 4), ratio=0, aligned=True, channels=3, scale=0.25,
    dtype=torch.float32,
):  # fmt: skip
    x = normal(rng, 2, channels, *size, dtype=dtype)
    rois = regions(rng, number, 2, size=max(size) / scale).to(dtype)
    out = torch.zeros(number, channels, *bins, dtype=dtype)
    argmax = x.new_zeros(0), x.new_zeros(0)
    settings = dict(
        aligned_height=bins[0],
        aligned_width=bins[1],
        spatial_scale=scale,
        sampling_ratio=ratio,
        pool_mode=1,
        aligned=aligned,
    )
    ext.roi_align_forward(x, rois, out, *argmax, **settings)
    grad = torch.zeros_like(x)
    ext.roi_align_backward(normal(rng, *out.shape, dtype=dtype), rois, *argmax, grad, **settings)
    return [out, grad]


def roi_align_rotated(ext, rng, number=8, size=(13, 17), bins=(3, 4), ratio=0, aligned=True, clockwise=False):
    x = normal(rng, 2, 3, *size)
    image = torch.from_numpy(rng.integers(0, 2, (number, 1))).float()
    rois = torch.cat([image, rotated_boxes(rng, number)], 1)
    settings = dict(
        pooled_height=bins[0],
        pooled_width=bins[1],
        spatial_scale=0.25,
        sampling_ratio=ratio,
        aligned=aligned,
        clockwise=clockwise,
    )
    out, grad = torch.zeros(number, 3, *bins), torch.zeros_like(x)
    ext.roi_align_rotated_forward(x, rois, out, **settings)
    ext.roi_align_rotated_backward(normal(rng, *out.shape), rois, grad, **settings)
    return [out, grad]


def rotated_feature_align(ext, rng, size=(6, 7), points=5):
    x = normal(rng, 2, 3, *size)
    best = rotated_boxes(rng, 2 * size[0] * size[1]).view(2, *size, 5)
    out, grad = torch.zeros_like(x), torch.zeros_like(x)
    ext.rotated_feature_align_forward(x, best, out, spatial_scale=0.125, points=points)
    ext.rotated_feature_align_backward(normal(rng, *x.shape), best, grad, spatial_scale=0.125, points=points)
    return [out, grad]


def _convolution(rng, size, kernel, stride, padding, dilation, groups, offset_groups, zero_offset, batch=2):
    x = normal(rng, batch, 8, *size)
    weight = normal(rng, 4, 8 // groups, *kernel)
    out = [(length + 2 * padding - dilation * (along - 1) - 1) // stride + 1 for length, along in zip(size, kernel)]
    offset = normal(rng, batch, 2 * offset_groups * kernel[0] * kernel[1], *out) * (0 if zero_offset else 2)
    return x, weight, offset, out


def deform_conv(
    ext, rng, size=(7, 9), kernel=(3, 3), stride=1, padding=1, dilation=1, groups=1, offset_groups=1,
    zero_offset=False,
):  # fmt: skip
    x, weight, offset, out_size = _convolution(
        rng, size, kernel, stride, padding, dilation, groups, offset_groups, zero_offset
    )
    settings = dict(
        kW=kernel[1], kH=kernel[0], dW=stride, dH=stride, padW=padding, padH=padding, dilationW=dilation,
        dilationH=dilation, group=groups, deformable_group=offset_groups, im2col_step=2,
    )  # fmt: skip
    out = torch.zeros(2, 4, *out_size)
    scratch = x.new_empty(0), x.new_empty(0)
    ext.deform_conv_forward(x, weight, offset, out, *scratch, **settings)
    grads = [torch.zeros_like(of) for of in (x, offset, weight)]
    grad_out = normal(rng, *out.shape)
    ext.deform_conv_backward_input(x, offset, grad_out, *grads[:2], weight, scratch[0], **settings)
    ext.deform_conv_backward_parameters(x, offset, grad_out, grads[2], *scratch, scale=1, **settings)
    return [out, *grads]


def modulated_deform_conv(
    ext, rng, size=(7, 9), kernel=(3, 3), stride=1, padding=1, dilation=1, groups=1, offset_groups=1,
    zero_offset=False, with_bias=True,
):  # fmt: skip
    x, weight, offset, out_size = _convolution(
        rng, size, kernel, stride, padding, dilation, groups, offset_groups, zero_offset
    )
    mask = normal(rng, 2, offset.shape[1] // 2, *out_size).sigmoid()
    bias = normal(rng, 4) if with_bias else x.new_empty(0)
    settings = dict(
        kernel_h=kernel[0], kernel_w=kernel[1], stride_h=stride, stride_w=stride, pad_h=padding, pad_w=padding,
        dilation_h=dilation, dilation_w=dilation, group=groups, deformable_group=offset_groups, with_bias=with_bias,
    )  # fmt: skip
    out = torch.zeros(2, 4, *out_size)
    scratch = x.new_empty(0), x.new_empty(0)
    ext.modulated_deform_conv_forward(x, weight, bias, scratch[0], offset, mask, out, scratch[1], **settings)
    grads = [torch.zeros_like(of) for of in (x, weight, bias, offset, mask)]
    grad_out = normal(rng, *out.shape)
    ext.modulated_deform_conv_backward(
        x, weight, bias, scratch[0], offset, mask, scratch[1], *grads, grad_out, **settings
    )
    return [out, *grads]


def psamask(ext, rng, size=(4, 5), mask=(5, 7), kind=0):
    x = normal(rng, 2, mask[0] * mask[1], *size)
    settings = dict(
        psa_type=kind, num_=2, h_feature=size[0], w_feature=size[1], h_mask=mask[0], w_mask=mask[1],
        half_h_mask=(mask[0] - 1) // 2, half_w_mask=(mask[1] - 1) // 2,
    )  # fmt: skip
    out, grad = torch.zeros(2, size[0] * size[1], *size), torch.zeros_like(x)
    ext.psamask_forward(x, out, **settings)
    ext.psamask_backward(normal(rng, *out.shape), grad, **settings)
    return [out, grad]


def active_rotated_filter(ext, rng, orientations=8, kernel=3, rotations=8):
    x = normal(rng, 2, 3, orientations, kernel, kernel)
    entries = orientations * kernel * kernel
    indices = np.stack([rng.permutation(entries) + 1 for _ in range(rotations)], 1).astype(np.int32)
    indices = torch.from_numpy(indices).view(orientations, kernel, kernel, rotations)
    out = torch.zeros(2 * rotations, 3 * orientations, kernel, kernel)
    grad = torch.zeros_like(x)
    ext.active_rotated_filter_forward(x, indices, out)
    ext.active_rotated_filter_backward(normal(rng, *out.shape), indices, grad)
    return [out, grad]


CASES = {  # with the seed of the inputs
    'nms': (13, nms, {}),
    'nms, offset 1': (16, nms, dict(offset=1, threshold=0.3)),
    'nms, 700 boxes': (14, nms, dict(number=700, threshold=0.7)),
    'nms, none': (15, nms, dict(number=0)),
    'softnms, naive': (35, softnms, dict(method=0)),
    'softnms, linear': (34, softnms, {}),
    'softnms, gaussian': (33, softnms, dict(method=2, offset=1, min_score=0.2)),
    'nms_match': (17, nms_match, {}),
    'box_iou_rotated': (6, box_iou_rotated, {}),
    'box_iou_rotated, iof, aligned': (7, box_iou_rotated, dict(mode=1, aligned=True)),
    'box_iou_quadri': (5, box_iou_rotated, dict(kind='quadri')),
    'nms_rotated': (19, nms_rotated, {}),
    'nms_rotated, labels': (20, nms_rotated, dict(labels=True)),
    'nms_quadri': (18, nms_rotated, dict(kind='quadri')),
    'roi_align': (23, roi_align, {}),
    'roi_align, ratio 2': (28, roi_align, dict(ratio=2)),
    'roi_align, not aligned': (27, roi_align, dict(aligned=False)),
    'roi_align, float64': (24, roi_align, dict(dtype=torch.float64)),
    'roi_align_rotated': (29, roi_align_rotated, {}),
    'roi_align_rotated, clockwise': (30, roi_align_rotated, dict(clockwise=True, ratio=2, aligned=False)),
    'rotated_feature_align': (31, rotated_feature_align, {}),
    'rotated_feature_align, 1 point': (32, rotated_feature_align, dict(points=1)),
    'deform_conv': (8, deform_conv, {}),
    'deform_conv, offsets of 0': (10, deform_conv, dict(zero_offset=True)),
    'deform_conv, groups': (9, deform_conv, dict(groups=2, offset_groups=4, stride=2, dilation=2, padding=3)),
    'modulated_deform_conv': (11, modulated_deform_conv, {}),
    'modulated_deform_conv, groups': (
        12,
        modulated_deform_conv,
        dict(groups=4, offset_groups=2, stride=2, kernel=(1, 3), with_bias=False),
    ),
    'psamask, collect': (21, psamask, {}),
    'psamask, distribute': (22, psamask, dict(kind=1, mask=(3, 3))),
    'active_rotated_filter': (0, active_rotated_filter, {}),
}


def outputs(ext, name):
    seed, case, settings = CASES[name]
    return [found.numpy() for found in case(ext, rng_of(seed), **settings)]


if __name__ == '__main__':
    from mmcv import _ext

    figures = {f'{name}/{index}': x for name in CASES for index, x in enumerate(outputs(_ext, name))}
    np.savez_compressed(FIGURES, **figures)
    print(f'{FIGURES}: {FIGURES.stat().st_size / 1024:.0f} KiB')
