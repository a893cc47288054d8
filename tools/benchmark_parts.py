"""Measure where the time of a forward goes on a CPU: in a backbone by stage, or in whole detectors by part.

python tools/benchmark_parts.py [CONFIG ...] [--arch tiny] [--version 2] [--size 800x1344] [--dtype bfloat16]
    [--runs N] [--threads N] [--busy-machine] [--json F [--overwrite]]

Without CONFIG: each part of SwinBackbone, and its floor, the time that its GEMMs take at the speed of torch's linear
layer. With CONFIG: backbone, neck, RPN and RoI heads of two-stage detectors, run in turn on one image with the same
random weights; below float32 only the backbone is under autocast, because mmcv's RoIAlign takes no bfloat16 on a CPU.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from command_line import BUILD_ERRORS, add_overwrite, positive, run, size, stop_on_user_errors
from rich.console import Console
from rich.table import Table

from swin_backbone import ARCHS, SwinBackbone, SwinV2Backbone
from swin_backbone.analysis import machine
from swin_backbone.analysis.parts import Share, backbone_shares, detector_shares
from swin_backbone.openmmlab import runtime
from swin_backbone.openmmlab.amp import in_bfloat16
from swin_backbone.outputs import claim

console = Console()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*', metavar='CONFIG', help='of two-stage detectors: paths, or mmdet::...')
    parser.add_argument('--arch', choices=list(ARCHS), default='tiny', help='of the backbone alone (default: tiny)')
    parser.add_argument('--version', type=int, choices=[1, 2], default=1, help='of the backbone alone (default: 1)')
    parser.add_argument('--size', type=size, default=(800, 1344), metavar='HxW', help='default: 800x1344')
    parser.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32', help='by autocast')
    parser.add_argument('--runs', type=positive, default=5, metavar='N', help='timed runs of each (default: 5)')
    parser.add_argument('--threads', type=positive, metavar='N', help="torch's threads (default: its own choice)")
    parser.add_argument('--busy-machine', action='store_true', help='take times though other programs run')
    parser.add_argument('--json', type=Path, metavar='F', help='write all figures')
    add_overwrite(parser)
    return parser.parse_args()


def build_detector(path: str) -> torch.nn.Module:
    from mmengine.registry import MODELS, init_default_scope

    cfg = runtime.load_config(path, None, None, 'none', with_data=False)
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    for key in ('pretrained', 'init_cfg'):
        cfg.model.backbone.pop(key, None)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    if not all(hasattr(model, part) for part in ('backbone', 'neck', 'rpn_head', 'roi_head')):
        raise ValueError(f'{path} is no two-stage detector, but: {type(model).__name__}')
    return model


def detect(model: Any, dtype: torch.dtype, shape: tuple[int, int]) -> int:
    """Run a detector on an image of noise; returns the number of objects."""
    from mmdet.structures import DetDataSample

    meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape, scale_factor=(1.0, 1.0))
    torch.manual_seed(0)
    image = torch.randn(1, 3, *shape)
    with torch.no_grad(), in_bfloat16(model.backbone) if dtype == torch.bfloat16 else nullcontext():
        (sample,) = model.predict(image, [DetDataSample(metainfo=meta)])
    return len(sample.pred_instances)


def show(title: str, shares: dict[str, Share]) -> None:
    whole = Share(*(sum(share[i] or 0 for share in shares.values()) for i in range(3)))
    has_floors = any(share.floor for share in shares.values())
    table = Table(title=title, title_justify='left')
    for column in ('part', 'ms', 'of the time', *(('GFLOP', 'floor, ms', 'floor / time') if has_floors else ())):
        table.add_column(column, justify='left' if column == 'part' else 'right')
    for name, share in {**shares, 'all': whole}.items():
        row = [name, f'{share.seconds * 1e3:.1f}', f'{share.seconds / whole.seconds:.1%}']
        if has_floors:
            floor = share.floor or 0
            row += [f'{share.flops / 1e9:.1f}', f'{floor * 1e3:.1f}', f'{floor / share.seconds:.2f}' if floor else '']
        table.add_row(*row)
    console.print(table)


def main() -> None:
    args = parse_args()
    machine.pin_threads(args.threads)
    dtype, where, found = getattr(torch, args.dtype), machine.processor(), {}
    with stop_on_user_errors(BUILD_ERRORS):
        outputs = claim(args.json, args.configs, args.overwrite) if args.json else None
        reason = None if args.busy_machine else machine.why_not_quiet()
        if reason is not None:
            raise ValueError(f'times taken now would mean little: {reason}. Take them later, or add --busy-machine')
        if args.configs:
            models = {path: build_detector(path) for path in args.configs}
            weights = next(iter(models.values())).state_dict()
            for model in models.values():  # the toolboxes' Swin has the same names
                model.load_state_dict({**model.state_dict(), **weights}, strict=False)
            runs = {path: lambda m=model: detect(m, dtype, args.size) for path, model in models.items()}
            found = detector_shares(runs, models, args.runs)
            for path, detect_once in runs.items():
                console.print(f'{path}: {detect_once()} objects')
        else:
            model = (SwinBackbone, SwinV2Backbone)[args.version - 1](arch=args.arch, drop_path_rate=0.0)
            name = f'Swin {args.arch}' if args.version == 1 else f'Swin V2 {args.arch}'
            found = {name: backbone_shares(model, torch.randn(1, 3, *args.size), dtype, args.runs)}
    for name, shares in found.items():
        show(f'{name}, {args.size[0]}x{args.size[1]}, {args.dtype}; {where}', shares)
    if outputs:
        rows = [
            dict(model=name, part=part, **s._asdict()) for name, shares in found.items() for part, s in shares.items()
        ]
        with stop_on_user_errors((OSError,)):
            outputs.write(args.json, json.dumps(dict(machine=where, rows=rows), indent=1).encode())


if __name__ == '__main__':
    run(main)
