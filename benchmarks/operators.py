"""Time operators of mmcv: ours, in turn with mmcv's compiled operators if they
are installed.

RoIAlign has the sizes of the box head (7x7) and the mask head (14x14), on four
pyramid levels, forward and backward. NMS has 1000 boxes. All operators of mmcv
for a CPU follow, forward: 1000 boxes, or the level of stride 16.
"""

import argparse
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from swin_backbone.commands import Parser, exit_with_message, run
from swin_backbone.devices import processor
from swin_backbone.openmmlab.mmcv_ops import ext
from swin_backbone.options import positive

from . import machine, timing

console = Console()
STRIDES = (4, 8, 16, 32)
REGIONS, CHANNELS = 1000, 256

# From a module of operators to the timed call.
Make = Callable[[ModuleType], Callable[[], Any]]


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add('shape threads', shape=dict(default=(800, 1333)))
    parser.add_argument('--runs', type=positive, default=10, metavar='N')
    parser.add_argument('--busy-machine', action='store_true', help='permit other programs')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    machine.pin_threads(args.threads)
    with exit_with_message():
        if not args.busy_machine:
            machine.require_quiet()
    title = f'{REGIONS} regions, {args.shape[0]}x{args.shape[1]}, ms; {processor()}'
    table = Table('operator', 'ours', "mmcv's", "mmcv's / ours", title=title, title_justify='left')
    for name, make in operators(args).items():
        spreads = timing.alternate({title: make(module) for title, module in modules().items()}, args.runs)
        ours, theirs = spreads['ours'].median, spreads['mmcv'].median if 'mmcv' in spreads else None
        table.add_row(
            name,
            f'{1e3 * ours:.1f}',
            '-' if theirs is None else f'{1e3 * theirs:.1f}',
            '-' if theirs is None else f'{theirs / ours:.2f}',
        )
    console.print(table)


def modules() -> dict[str, ModuleType]:
    from mmcv import _ext

    return {'ours': ext} if _ext is ext else {'ours': ext, 'mmcv': _ext}


def operators(args: argparse.Namespace) -> dict[str, Make]:
    """Return the operators by name."""
    generator = torch.Generator().manual_seed(0)
    height, width = args.shape
    boxes = draw_boxes(REGIONS, height, width, generator)
    scores = torch.rand(REGIONS, generator=generator)
    # The pyramid level of a region, like in mmdet's SingleRoIExtractor.
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(1).sqrt()
    levels = (sides / 56 + 1e-6).log2().floor().clamp(0, 3).long()
    maps = [
        torch.rand(1, CHANNELS, -(-height // stride), -(-width // stride), generator=generator) for stride in STRIDES
    ]
    regions = [torch.cat([torch.zeros(len(of), 1), of], 1) for of in (boxes[levels == i] for i in range(4))]

    def align(bins: int, backward: bool) -> Make:
        def make(module: ModuleType) -> Callable[[], None]:
            outs = [x.new_zeros(len(rois), CHANNELS, bins, bins) for x, rois in zip(maps, regions)]

            def call() -> None:
                for x, rois, out, stride in zip(maps, regions, outs, STRIDES):
                    settings = (bins, bins, 1 / stride, 0, 1, True)
                    if backward:
                        module.roi_align_backward(out, rois, out[:0], out[:0], torch.zeros_like(x), *settings)
                    else:
                        module.roi_align_forward(x, rois, out, out[:0], out[:0], *settings)

            return call

        return make

    return {
        'RoIAlign 7x7': align(7, backward=False),
        'RoIAlign 7x7, gradient': align(7, backward=True),
        'RoIAlign 14x14': align(14, backward=False),
        'NMS, threshold 0.7': lambda module: lambda: module.nms(boxes, scores, iou_threshold=0.7, offset=0),
        'NMS, threshold 0.5': lambda module: lambda: module.nms(boxes, scores, iou_threshold=0.5, offset=0),
        **others_of_boxes(boxes, scores),
        **others_of_maps(maps[2], generator),
    }


def others_of_boxes(boxes: Tensor, scores: Tensor) -> dict[str, Make]:
    """Return operators of boxes beside NMS."""
    number = len(boxes)
    dets = torch.cat([boxes, scores[:, None]], 1)
    order = scores.argsort(descending=True)
    centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    rotated = torch.cat([centres, sides, 3 * scores[:, None]], 1)
    labels = torch.zeros(number)
    return {
        'soft NMS': lambda module: (
            lambda: module.softnms(
                boxes, scores, torch.zeros(number, 5), iou_threshold=0.3, sigma=0.5, min_score=0.05, method=1, offset=0
            )
        ),
        'NMS with matches': lambda module: lambda: module.nms_match(dets, iou_threshold=0.7),
        'NMS of rotated boxes': lambda module: (
            lambda: module.nms_rotated(rotated, scores, order, rotated[order], labels, 0.3, False)
        ),
        'overlaps of 300 rotated boxes': lambda module: (
            lambda: module.box_iou_rotated(
                rotated[:300], rotated[:300], torch.zeros(300 * 300), mode_flag=0, aligned=False
            )
        ),
    }


def others_of_maps(x: Tensor, generator: torch.Generator) -> dict[str, Make]:
    """Return operators that sample the map `x` of stride 16: rotated boxes, and 3x3 convolutions with offsets."""
    _, channels, height, width = x.shape
    weight = torch.rand(channels, channels, 3, 3, generator=generator)
    offset = torch.randn(1, 18, height, width, generator=generator)
    mask, none, out = torch.rand(1, 9, height, width, generator=generator), x.new_empty(0), torch.empty_like(x)
    best = torch.rand(1, height, width, 5, generator=generator) * torch.tensor([16 * width, 16 * height, 200, 200, 3])
    regions = torch.cat([torch.zeros(300, 1), best.view(-1, 5)[:300]], 1)
    pooled = x.new_zeros(300, channels, 7, 7)
    one = dict.fromkeys(('padW', 'padH', 'dW', 'dH', 'dilationW', 'dilationH', 'group', 'deformable_group'), 1)
    step = ('pad_h', 'pad_w', 'stride_h', 'stride_w', 'dilation_h', 'dilation_w', 'group', 'deformable_group')
    rotated = dict(
        pooled_height=7, pooled_width=7, spatial_scale=1 / 16, sampling_ratio=2, aligned=True, clockwise=False
    )
    attention = torch.rand(1, 59 * 59, 30, 30, generator=generator)
    psa = dict(num_=1, h_feature=30, w_feature=30, h_mask=59, w_mask=59, half_h_mask=29, half_w_mask=29)
    filters = torch.rand(64, 64, 8, 3, 3, generator=generator)
    turns = torch.stack([torch.randperm(72, generator=generator) for _ in range(8)], 1).view(8, 3, 3, 8).int() + 1
    return {
        'deformable convolution': lambda module: (
            lambda: module.deform_conv_forward(
                x, weight, offset, out, none, x.new_empty(0), kW=3, kH=3, im2col_step=1, **one
            )
        ),
        'deformable convolution, version 2': lambda module: (
            lambda: module.modulated_deform_conv_forward(
                *(x, weight, none, none, offset, mask, out, x.new_empty(0)),
                **dict(kernel_h=3, kernel_w=3, with_bias=False, **dict.fromkeys(step, 1)),
            )
        ),
        'rotated RoIAlign 7x7, 300 boxes': lambda module: (
            lambda: module.roi_align_rotated_forward(x, regions, pooled, **rotated)
        ),
        'rotated feature alignment': lambda module: (
            lambda: module.rotated_feature_align_forward(x, best, out, spatial_scale=1 / 16, points=5)
        ),
        "PSANet's mask": lambda module: (
            lambda: module.psamask_forward(attention, x.new_zeros(1, 900, 30, 30), psa_type=0, **psa)
        ),
        'active rotating filter': lambda module: (
            lambda: module.active_rotated_filter_forward(filters, turns, x.new_zeros(512, 512, 3, 3))
        ),
    }


def draw_boxes(number: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return boxes around a few objects, like region proposals: sides of 16 to 400 pixels."""
    objects = torch.rand(max(number // 20, 1), 4, generator=generator)
    near = objects[torch.randint(len(objects), (number,), generator=generator)]
    near = near + 0.02 * torch.randn(number, 4, generator=generator)
    centre = near[:, :2] * torch.tensor([width, height])
    sides = 16 * 25 ** near[:, 2:].clamp(0, 1)
    limit = torch.tensor([width, height, width, height])
    return torch.cat([centre - sides / 2, centre + sides / 2], 1).clamp(min=0).minimum(limit)


if __name__ == '__main__':
    run(main)
