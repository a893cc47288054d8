"""Time the operators of a Mask R-CNN that mmcv compiles: ours, and in turns with them mmcv's, where they are compiled.

    python -m benchmarks.operators [--size HxW] [--regions N] [--channels C] [--runs N] [--threads N]
        [--busy-machine]

RoIAlign is that of the box head (7x7) and of the mask head (14x14), over the four levels of the pyramid, forward and
backward. NMS is that of as many boxes.
"""

import argparse
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from swin_backbone.command_line import positive, run, size, stop_on_user_errors
from swin_backbone.devices import processor
from swin_backbone.mmcv_ops import ext

from . import machine, timing

console = Console()
STRIDES = (4, 8, 16, 32)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', type=size, default=(800, 1333), metavar='HxW')
    parser.add_argument('--regions', type=positive, default=1000, metavar='N')
    parser.add_argument('--channels', type=positive, default=256, metavar='C')
    parser.add_argument('--runs', type=positive, default=10, metavar='N')
    parser.add_argument('--threads', type=positive, default=None, metavar='N')
    parser.add_argument('--busy-machine', action='store_true', help='measure although other processes run')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    machine.pin_threads(args.threads)
    with stop_on_user_errors():
        reason = None if args.busy_machine else machine.why_not_quiet()
        if reason is not None:
            raise ValueError(f'times taken now would mean little: {reason}. Take them later, or add --busy-machine')
    title = f'{args.regions} regions, {args.size[0]}x{args.size[1]}, ms; {processor()}'
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


def operators(args: argparse.Namespace) -> dict[str, Callable[[ModuleType], Callable[[], Any]]]:
    """Of each, what makes of a module the call that is timed."""
    generator = torch.Generator().manual_seed(0)
    height, width = args.size
    boxes = draw_boxes(args.regions, height, width, generator)
    scores = torch.rand(args.regions, generator=generator)
    # The level whose stride fits a region, as mmdet's SingleRoIExtractor takes it.
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(1).sqrt()
    levels = (sides / 56 + 1e-6).log2().floor().clamp(0, 3).long()
    maps = [
        torch.rand(1, args.channels, -(-height // stride), -(-width // stride), generator=generator)
        for stride in STRIDES
    ]
    regions = [torch.cat([torch.zeros(len(of), 1), of], 1) for of in (boxes[levels == i] for i in range(4))]

    def align(bins: int, backward: bool) -> Callable[[ModuleType], Callable[[], None]]:
        def make(module: ModuleType) -> Callable[[], None]:
            outs = [x.new_zeros(len(rois), args.channels, bins, bins) for x, rois in zip(maps, regions)]

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
    }


def draw_boxes(number: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Boxes around a few objects, as a region proposal network gives them: sides of 16 to 400 pixels."""
    objects = torch.rand(max(number // 20, 1), 4, generator=generator)
    near = objects[torch.randint(len(objects), (number,), generator=generator)]
    near = near + 0.02 * torch.randn(number, 4, generator=generator)
    centre = near[:, :2] * torch.tensor([width, height])
    sides = 16 * 25 ** near[:, 2:].clamp(0, 1)
    limit = torch.tensor([width, height, width, height])
    return torch.cat([centre - sides / 2, centre + sides / 2], 1).clamp(min=0).minimum(limit)


if __name__ == '__main__':
    run(main)
