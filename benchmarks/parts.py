"""Measure where the time of a forward goes on a CPU: in a backbone by stage, or in whole detectors by part.

python -m benchmarks.parts [CONFIG ...] [--arch tiny] [--version 2] [--size 800x1344] [--dtype bfloat16]
    [--runs N] [--threads N] [--busy-machine] [--json F [--overwrite]]

Without CONFIG: each part of SwinBackbone, and its floor, the time that its GEMMs take at the speed of torch's linear
layer. With CONFIG: backbone, neck, RPN and RoI heads of two-stage detectors, run in turn on one image with the same
random weights; below float32 as `--amp` computes.

Layout: B batch, C channels, H W height and width.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from swin_backbone import ARCHS, SwinBackbone, SwinV2Backbone
from swin_backbone.command_line import BUILD_ERRORS, add_overwrite, positive, run, size, stop_on_user_errors
from swin_backbone.devices import processor
from swin_backbone.models import pyramid
from swin_backbone.models.layers import PatchEmbed, PatchMerging
from swin_backbone.models.pyramid import SwinPyramid, SwinStage
from swin_backbone.openmmlab import runtime
from swin_backbone.openmmlab.optim.amp import mixed_precision
from swin_backbone.outputs import claim

from . import machine

console = Console()
REST = 'the rest'
Place = tuple[Any, str]  # an object, and the name of its function
Spent = defaultdict[str, float]  # by part


class Share(NamedTuple):
    """What a part of a forward takes: medians over several runs."""

    seconds: float
    flops: int = 0  # two a multiply-add
    floor: Optional[float] = None  # the seconds that these take at the rate of torch's linear layer; None: not counted


def backbone_shares(model: SwinPyramid, x_BCHW: Tensor, dtype: torch.dtype, runs: int = 5) -> dict[str, Share]:
    """The parts of a backbone: patch embedding, the blocks of each stage, patch merging, output norms.

    The floor of a part is the time of its GEMMs, those of attention among them, at the rate at which torch's linear
    layer runs on this machine. The rate is measured between the runs.

    Args:
        dtype: float32, or that of autocast.
    """
    model = model.eval()
    numbers = {id(stage): number for number, stage in enumerate(model.stages, 1)}

    def name_of_stage(stage: nn.Module, *_args: Any) -> str:
        return f'blocks of stage {numbers[id(stage)]}'

    # Of the classes: a layer with a `forward` of its own would no longer be computed by compiled operators.
    places: dict[Place, Any] = {
        (PatchEmbed, 'forward'): 'patch embedding',
        (SwinStage, 'forward'): name_of_stage,
        (PatchMerging, 'forward'): 'patch merging',
        (pyramid, 'normalised_output'): 'output norms',
    }

    def run() -> None:
        with torch.no_grad(), torch.autocast('cpu', dtype, enabled=dtype != torch.float32):
            model(x_BCHW)

    # oneDNN's linear layer and the compiled operators are not among what the counter knows.
    with FlopCounterMode(display=False) as counter, torch.backends.mkldnn.flags(enabled=False):
        flops = _spent(run, places, counter.get_total_flops)
    measured, rates = [], []
    for turn in range(-1, runs):
        seconds = _spent(run, places, time.perf_counter)
        if turn >= 0:
            measured.append(seconds)
            rates.append(machine.linear_rate(dtype))
    rate = statistics.median(rates)
    return {name: Share(seconds, int(flops[name]), flops[name] / rate) for name, seconds in _medians(measured).items()}


def detector_shares(
    runs: Mapping[str, Callable[[], object]], models: dict[str, nn.Module], rounds: int = 5
) -> dict[str, dict[Any, Share]]:
    """The parts of two-stage detectors, which are run in turn: backbone, neck, RPN and RoI heads.

    Args:
        runs: detects something with each model, by the model's name.

    Returns:
        For each model the `Share` of each part by its name.
    """
    measured: dict[str, list[Spent]] = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name, run_once in runs.items():
            model: Any = models[name]
            places: dict[Place, Any] = {
                (model.backbone, 'forward'): 'backbone',
                (model.neck, 'forward'): 'neck',
                (model.rpn_head, 'predict'): 'RPN',
                (model.roi_head, 'predict'): 'RoI heads',
            }
            seconds = _spent(run_once, places, time.perf_counter)
            if turn >= 0:
                measured[name].append(seconds)
    return {name: {part: Share(s) for part, s in _medians(of_one).items()} for name, of_one in measured.items()}


def _spent(run: Callable[[], object], places: dict[Place, Any], read: Callable[[], float]) -> Spent:
    """By how much what `read` returns grows in each part of a run, and in the rest of it."""
    found: Spent = defaultdict(float)
    with ExitStack() as stack:
        for place, part in places.items():
            stack.enter_context(_watched(place, part, read, found))
        begin = read()
        run()
        whole = read() - begin
    found[REST] = whole - sum(found.values())
    return found


@contextmanager
def _watched(place: Place, part: Any, read: Callable[[], float], found: Spent) -> Iterator[None]:
    """While this lasts, add calls of a function to a part: a name, or what gives one for the arguments."""
    owner, name = place
    function, is_own = getattr(owner, name), name in vars(owner)

    def watched(*args: Any, **kwargs: Any) -> Any:
        begin = read()
        result = function(*args, **kwargs)
        found[part(*args) if callable(part) else part] += read() - begin
        return result

    setattr(owner, name, watched)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, function)
        else:
            delattr(owner, name)


def _medians(measured: Sequence[Spent]) -> dict[str, float]:
    return {part: statistics.median(seconds[part] for seconds in measured) for part in measured[0]}


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
    model: torch.nn.Module = MODELS.build(cfg.model).eval()
    if not all(hasattr(model, part) for part in ('backbone', 'neck', 'rpn_head', 'roi_head')):
        raise ValueError(f'{path} is no two-stage detector, but: {type(model).__name__}')
    return model


def detect(model: Any, dtype: torch.dtype, shape: tuple[int, int]) -> int:
    """Run a detector on an image of noise; returns the number of objects."""
    from mmdet.structures import DetDataSample

    meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape, scale_factor=(1.0, 1.0))
    torch.manual_seed(0)
    image = torch.randn(1, 3, *shape)
    with torch.no_grad(), mixed_precision(model) if dtype == torch.bfloat16 else nullcontext():
        (sample,) = model.predict(image, [DetDataSample(metainfo=meta)])
    return len(sample.pred_instances)


def show(title: str, shares: dict[str, Share]) -> None:
    parts = shares.values()
    whole = Share(sum(s.seconds for s in parts), sum(s.flops or 0 for s in parts), sum(s.floor or 0 for s in parts))
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
    dtype, where, found = getattr(torch, args.dtype), processor(), {}
    with stop_on_user_errors(BUILD_ERRORS):
        outputs = claim(args.json, args.configs, args.overwrite) if args.json else None
        reason = None if args.busy_machine else machine.why_not_quiet()
        if reason is not None:
            raise ValueError(f'times taken now would mean little: {reason}. Take them later, or add --busy-machine')
        if args.configs:
            models: dict[str, nn.Module] = {path: build_detector(path) for path in args.configs}
            weights = next(iter(models.values())).state_dict()
            for model in models.values():  # the toolboxes' Swin has the same names
                model.load_state_dict({**model.state_dict(), **weights}, strict=False)
            runs: dict[str, Callable[[], int]] = {
                path: partial(detect, model, dtype, args.size) for path, model in models.items()
            }
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
