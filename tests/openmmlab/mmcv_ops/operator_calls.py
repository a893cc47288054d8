"""Functions of `mmcv.ops` with drawn inputs. Each case returns the outputs, and the gradients of the inputs.

As a program, this file stores the results of mmcv's compiled functions:

    python tests/openmmlab/mmcv_ops/operator_calls.py    # writes tests/openmmlab/mmcv_ops/figures.npz

numpy draws the inputs: its numbers are the same on every machine.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

import mmcv.ops
import numpy as np
import pytest
import torch

from swin_backbone.openmmlab.mmcv_ops.overlaps import find_rotated_corners

FIGURES = Path(__file__).with_name('figures.npz')


@contextmanager
def operators_of(ext):
    """Let `mmcv.ops` call the functions of `ext`, for example of `mmcv._ext`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith('mmcv.ops.') and hasattr(module, 'ext_module'):
                patch.setattr(module, 'ext_module', ext)
        yield


def with_gradients(rng, function, *inputs, settings=()):
    """Return the output of `function(*inputs, *settings)`, and the gradients of the inputs for a drawn gradient."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves, *settings)
    return [out.detach(), *torch.autograd.grad(out, leaves, normal(rng, *out.shape, dtype=out.dtype))]


def rng_of(seed):
    return np.random.default_rng(seed)


def normal(rng, *shape, dtype=torch.float32):
    return torch.from_numpy(rng.normal(size=shape)).to(dtype)


def boxes(rng, number, size=100.0):
    """Upright boxes, some partly outside of (0, size), some equal, some without an area."""
    corners = rng.uniform(-0.1 * size, 1.1 * size, (number, 2, 2))
    results = np.concatenate([corners.min(1), corners.max(1)], 1)
    results[number // 2 :: 5] = np.round(results[number // 2 :: 5])
    results[1::7] = results[0] if number else 0
    results[3::11, 2] = results[3::11, 0]
    return torch.from_numpy(results).float()


def regions(rng, number, images, size=100.0):
    return torch.cat([torch.from_numpy(rng.integers(0, images, (number, 1))).float(), boxes(rng, number, size)], 1)


def rotated_boxes(rng, number):
    centre, size = rng.uniform(0, 60, (number, 2)), rng.uniform(1, 40, (number, 2))
    angle = rng.uniform(-3.2, 3.2, (number, 1))
    return torch.from_numpy(np.concatenate([centre, size, angle], 1)).float()


def quadrilaterals(rng, number):
    """Rectangles, because mmcv miscounts shared corners of other quadrilaterals."""
    return find_rotated_corners(rotated_boxes(rng, number)).flatten(1)


def scores(rng, number):
    """Scores with ties: every second score is rounded to tenths."""
    results = rng.uniform(0, 1, number)
    results[::2] = np.round(results[::2], 1)
    return torch.from_numpy(results).float()


def nms(rng, number=60, threshold=0.5, offset=0):
    return [mmcv.ops.nms(boxes(rng, number), scores(rng, number), threshold, offset)[1]]


def softnms(rng, number=40, threshold=0.3, sigma=0.5, min_score=0.05, method='linear', offset=0):
    settings = threshold, sigma, min_score, method, offset
    dets, chosen = mmcv.ops.soft_nms(boxes(rng, number), scores(rng, number), *settings)
    return [chosen, dets]


def nms_match(rng, number=40, threshold=0.5):
    groups = mmcv.ops.nms_match(torch.cat([boxes(rng, number), scores(rng, number)[:, None]], 1), threshold)
    return [torch.cat(groups), torch.tensor([len(group) for group in groups])]


def box_iou_rotated(rng, number=12, others=9, mode='iou', aligned=False, kind='rotated'):
    draw = rotated_boxes if kind == 'rotated' else quadrilaterals
    first, second = draw(rng, number), draw(rng, number if aligned else others)
    return [getattr(mmcv.ops, f'box_iou_{kind}')(first, second, mode, aligned).flatten()]


def nms_rotated(rng, number=60, threshold=0.3, kind='rotated', has_labels=False):
    dets, score = (rotated_boxes if kind == 'rotated' else quadrilaterals)(rng, number), scores(rng, number)
    labels = torch.from_numpy(rng.integers(0, 3, number)).float() if has_labels else None
    return [getattr(mmcv.ops, f'nms_{kind}')(dets, score, threshold, labels)[1]]


def roi_align(
    rng, number=8, size=(13, 17), bins=(3, 4), ratio=0, aligned=True, channels=3, scale=0.25, dtype=torch.float32
):
    x = normal(rng, 2, channels, *size, dtype=dtype)
    rois = regions(rng, number, 2, size=max(size) / scale).to(dtype)
    return with_gradients(rng, mmcv.ops.roi_align, x, settings=(rois, bins, scale, ratio, 'avg', aligned))


def roi_align_rotated(rng, number=8, size=(13, 17), bins=(3, 4), ratio=0, aligned=True, clockwise=False):
    x = normal(rng, 2, 3, *size)
    image = torch.from_numpy(rng.integers(0, 2, (number, 1))).float()
    rois = torch.cat([image, rotated_boxes(rng, number)], 1)
    return with_gradients(rng, mmcv.ops.roi_align_rotated, x, settings=(rois, bins, 0.25, ratio, aligned, clockwise))


def rotated_feature_align(rng, size=(6, 7), points=5):
    x = normal(rng, 2, 3, *size)
    best = rotated_boxes(rng, 2 * size[0] * size[1]).view(2, *size, 5)
    return with_gradients(rng, mmcv.ops.rotated_feature_align, x, settings=(best, 0.125, points))


def deform_conv(
    rng, size=(7, 9), kernel=(3, 3), stride=1, padding=1, dilation=1, groups=1, offset_groups=1,
    zero_offset=False, modulated=False, has_bias=False,
):  # fmt: skip
    x, weight = normal(rng, 2, 8, *size), normal(rng, 4, 8 // groups, *kernel)
    out = [(length + 2 * padding - dilation * (along - 1) - 1) // stride + 1 for length, along in zip(size, kernel)]
    offset = normal(rng, 2, 2 * offset_groups * kernel[0] * kernel[1], *out) * (0 if zero_offset else 2)
    settings = stride, padding, dilation, groups, offset_groups
    if not modulated:
        return with_gradients(rng, mmcv.ops.deform_conv2d, x, offset, weight, settings=settings)
    inputs = [x, offset, normal(rng, 2, offset.shape[1] // 2, *out).sigmoid(), weight]
    if has_bias:
        return with_gradients(rng, mmcv.ops.modulated_deform_conv2d, *inputs, normal(rng, 4), settings=settings)
    return with_gradients(rng, mmcv.ops.modulated_deform_conv2d, *inputs, settings=(None, *settings))


def psamask(rng, size=(4, 5), mask=(5, 7), kind=0):
    x = normal(rng, 2, mask[0] * mask[1], *size)
    return with_gradients(rng, mmcv.ops.psa_mask.PSAMaskFunction.apply, x, settings=(kind, mask))


def active_rotated_filter(rng, orientations=8, kernel=3, rotations=8):
    x = normal(rng, 2, 3, orientations, kernel, kernel)
    entries = orientations * kernel * kernel
    indices = np.stack([rng.permutation(entries) + 1 for _ in range(rotations)], 1).astype(np.int32)
    indices = torch.from_numpy(indices).view(orientations, kernel, kernel, rotations)
    return with_gradients(rng, mmcv.ops.active_rotated_filter, x, settings=(indices,))


CASES = {  # with the seed of the inputs
    'nms': (13, nms, {}),
    'nms, offset 1': (16, nms, dict(offset=1, threshold=0.3)),
    'nms, 700 boxes': (14, nms, dict(number=700, threshold=0.7)),
    'nms, none': (15, nms, dict(number=0)),
    'softnms, naive': (35, softnms, dict(method='naive')),
    'softnms, linear': (34, softnms, {}),
    'softnms, gaussian': (33, softnms, dict(method='gaussian', offset=1, min_score=0.2)),
    'nms_match': (17, nms_match, {}),
    'box_iou_rotated': (6, box_iou_rotated, {}),
    'box_iou_rotated, iof, aligned': (7, box_iou_rotated, dict(mode='iof', aligned=True)),
    'box_iou_quadri': (5, box_iou_rotated, dict(kind='quadri')),
    'nms_rotated': (19, nms_rotated, {}),
    'nms_rotated, labels': (20, nms_rotated, dict(has_labels=True)),
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
    'modulated_deform_conv': (11, deform_conv, dict(modulated=True, has_bias=True)),
    'modulated_deform_conv, groups': (
        12,
        deform_conv,
        dict(modulated=True, groups=4, offset_groups=2, stride=2, kernel=(1, 3)),
    ),
    'psamask, collect': (21, psamask, {}),
    'psamask, distribute': (22, psamask, dict(kind=1, mask=(3, 3))),
    'active_rotated_filter': (0, active_rotated_filter, {}),
}


def outputs(ext, name):
    seed, case, settings = CASES[name]
    with operators_of(ext):
        return [x.numpy() for x in case(rng_of(seed), **settings)]


if __name__ == '__main__':
    from mmcv import _ext

    figures = {f'{name}/{index}': x for name in CASES for index, x in enumerate(outputs(_ext, name))}
    np.savez_compressed(FIGURES, **figures)
    print(f'{FIGURES}: {FIGURES.stat().st_size / 1024:.0f} KiB')
