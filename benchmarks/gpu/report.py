"""Check the kernels on a GPU and measure their time and memory, as one table to paste into an issue.

python -m benchmarks.gpu.report [--device cuda] [--arch tiny] [--size 800x1344] [--batch 2] [--dtype bfloat16]
    [--peers mmdet] [--v2-window 16] [--only kernels|backbones] [--compile] [--tune] [--tools] [--detector CONFIG]
    [--runs N] [--json F [--overwrite]]
python -m benchmarks.gpu.report --count [--arch ...] [--size ...] [--batch ...] [--dtype ...] [--peers ...] [--json F]
ncu python -m benchmarks.gpu.report --launch [--size ...] [--batch ...] [--dtype ...] [--windows N ...]

If a part fails, its line says why, and the next part runs; what is not installed is left out. The exit status is 1 if a
kernel is wrong or a part failed.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from swin_backbone.command_line import add_overwrite, positive, run, size, stop_on_user_errors

if '--count' in sys.argv or not torch.cuda.is_available():
    os.environ.setdefault('TRITON_INTERPRET', '1')  # Triton reads it when a kernel is defined

from swin_backbone import ARCHS, SwinBackbone, SwinV2Backbone
from swin_backbone.backends.triton.backend import FUSIONS
from swin_backbone.backends.triton.trial import DTYPES, why_unusable
from swin_backbone.outputs import claim

from ..peers import PEERS, PEERS_V2, build_peer
from . import checks, kernels, models, nvidia
from .counts import count_traffic

OURS, OURS_V2 = 'swin_backbone', 'swin_backbone V2'
# What compute-sanitizer runs: it is slow. Windows of one tile and of several, shifted, at the edge and padded.
SMALL = '--arch', 'nano', '--size', '120x136', '--batch', '1', '--windows', '7', '12'
DROP_PATH = 0.2  # of all backbones, in training


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='cuda', help='default: cuda; cpu only shows that the program works')
    parser.add_argument('--arch', choices=list(ARCHS), default='tiny', help='default: tiny')
    parser.add_argument('--size', type=size, default=(800, 1344), metavar='HxW', help='default: 800x1344')
    parser.add_argument('--batch', type=positive, default=2, metavar='N', help='images (default: 2)')
    parser.add_argument('--dtype', choices=['bfloat16', 'float16'], default='bfloat16', help='by autocast')
    parser.add_argument('--peers', default='mmdet', help=f'of {",".join(PEERS)} (default: mmdet)')
    parser.add_argument('--windows', nargs='+', type=positive, default=[7, 8, 12], metavar='N', help='default: 7 8 12')
    parser.add_argument('--v2-window', type=positive, default=16, metavar='N', help='of Swin V2 (default: 16)')
    parser.add_argument('--only', choices=['kernels', 'backbones'], help='half of the report (default: all of it)')
    parser.add_argument('--compile', action='store_true', help='measure all backbones with torch.compile too')
    parser.add_argument(
        '--tune', action='store_true', help='time the kernels with other numbers of warps and so on too'
    )
    parser.add_argument(
        '--tools', action='store_true', help='run the attention kernels under ncu and compute-sanitizer, if there, too'
    )
    parser.add_argument(
        '--detector', default='', metavar='CONFIG', help='measure its whole training step, with and without ours, too'
    )
    parser.add_argument('--launch', action='store_true', help='only run each attention kernel once, for tools')
    parser.add_argument(
        '--count', action='store_true', help='only count bytes and operators from shapes, which needs no GPU'
    )
    parser.add_argument('--runs', type=positive, default=20, metavar='N', help='timed runs of each (default: 20)')
    parser.add_argument('--json', type=Path, metavar='F', help='write all figures')
    add_overwrite(parser)
    args = parser.parse_args()
    if args.count:
        args.device = 'cpu'
    if args.device != 'cpu' and not torch.cuda.is_available():
        parser.error(f'--device {args.device}: torch {torch.__version__} sees no GPU')
    unknown = set(filter(None, args.peers.split(','))) - PEERS.keys()
    if unknown:
        parser.error(f'--peers takes {",".join(PEERS)}, got {",".join(sorted(unknown))}')
    return args


@contextmanager
def fused(names: str) -> Iterator[None]:
    before = os.environ.get('SWIN_BACKBONE_FUSE', '')
    os.environ['SWIN_BACKBONE_FUSE'] = names
    try:
        yield
    finally:
        os.environ['SWIN_BACKBONE_FUSE'] = before


def build(args: argparse.Namespace, name: str, variant: dict[str, Any]) -> torch.nn.Module:
    """One of the backbones; all of a version get the same weights."""
    torch.manual_seed(0)
    kind = SwinV2Backbone if 'window_size' in variant else SwinBackbone
    ours = kind(arch=args.arch, drop_path_rate=DROP_PATH, **variant)
    return build_peer(name, args.arch, ours, DROP_PATH) if name in PEERS else ours


Parts = Iterator[tuple[str, Iterator[kernels.Row]]]


def parts(args: argparse.Namespace) -> Parts:
    """The parts of the report, one after the other, each with its name."""
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    if args.count:
        yield from counts(args)
        return
    stages = kernels.stages(ARCHS[args.arch], args.size)
    if args.launch:
        for window in args.windows:
            for shifted in (False, True):
                yield 'launch', (kernels.launch(stage, args.batch, window, shifted, dtype, device) for stage in stages)
        return
    yield 'machine', kernels.describe(device, dtype, stages[0], args.batch)
    yield 'trial', trial(args, device)
    if args.only != 'backbones':
        yield from of_kernels(args, stages, device, dtype)
    if args.only != 'kernels':
        yield from of_backbones(args, torch.randn(args.batch, 3, *args.size, device=device))


def counts(args: argparse.Namespace) -> Parts:
    for train in (False, True):
        for title, name, variant, fusion in variants(args):
            # The tables of indices of SDPA need values, and a checkpoint does not recompute with CUDA's casts.
            if variant.get('backend') == 'eager' or 'with_cp' in variant:
                continue
            yield title, counted(args, title, name, variant, fusion, train)


def of_kernels(
    args: argparse.Namespace, stages: list[kernels.Stage], device: torch.device, dtype: torch.dtype
) -> Parts:
    for window in args.windows:
        for stage in stages:
            for shifted in (False, True):
                yield 'attention', kernels.attention(stage, args.batch, window, shifted, dtype, device)
    number, side = (40, 60) if device.type == 'cuda' else (2, 9)
    yield 'attention of any size', kernels.any_size(number, side, dtype, device)
    yield 'attention in used memory', checks.used_memory(stages[0], dtype, device)
    huge = checks.HUGE if device.type == 'cuda' else stages[-1]
    yield 'attention on huge maps', checks.huge_maps(huge, dtype, device)
    if args.tune:
        for stage in stages:
            for shifted in (False, True):
                yield 'tuning', kernels.tuning(stage, args.batch, args.windows[0], shifted, dtype, device)
    if args.tools:
        launch = [
            sys.executable,
            '-m',
            'benchmarks.gpu.report',
            '--launch',
            '--device',
            args.device,
            '--dtype',
            args.dtype,
        ]
        yield 'compute-sanitizer', nvidia.compute_sanitizer([*launch, *SMALL])
        sizes = ['--arch', args.arch, '--size', 'x'.join(map(str, args.size)), '--batch', str(args.batch)]
        yield 'ncu', nvidia.nsight_compute([*launch, *sizes, '--windows', str(args.windows[0])])


def of_backbones(args: argparse.Namespace, x_BCHW: torch.Tensor) -> Parts:
    for title, name, variant, fusion in variants(args):
        if name == OURS:
            yield f'precision, {title}', precision(args, title, variant, fusion, x_BCHW)
    yield 'a captured forward', captured(args, x_BCHW)
    for train in (False, True):
        for compiled in (False, True) if args.compile else (False,):
            for title, name, variant, fusion in variants(args):
                title += ', compiled' if compiled else ''
                yield title, backbone(args, title, name, variant, fusion, compiled, x_BCHW, train)
    for ours in (True, False) if args.detector else ():
        yield args.detector, detector(args, ours, x_BCHW.device)


def variants(args: argparse.Namespace) -> list[tuple[str, str, dict[str, Any], str]]:
    """The backbones that are compared: title, who built it, its further arguments, and its fusions."""
    kernel: dict[str, Any] = dict(backend='triton') if args.device == 'cpu' else {}
    ours: dict[str, dict[str, Any]] = {
        '': kernel,
        ', sdpa': dict(backend='eager'),
        ', with_cp': {**kernel, 'with_cp': True},
    }
    found = [(OURS + how, OURS, variant, '') for how, variant in ours.items()]
    found += [(f'{OURS}, fused: {fusion}', OURS, kernel, fusion) for fusion in (*FUSIONS, ','.join(FUSIONS))]
    found += [(peer, peer, {}, '') for peer in filter(None, args.peers.split(','))]
    if args.count:
        return found
    of_v2: dict[str, Any] = {'window_size': args.v2_window}
    titles: dict[str, dict[str, Any]] = {OURS_V2: {**kernel, **of_v2}, **dict.fromkeys(PEERS_V2, of_v2)}
    return found + [(f'{name}, windows of {args.v2_window}', name, how, '') for name, how in titles.items()]


def counted(
    args: argparse.Namespace, title: str, name: str, variant: dict[str, Any], fusion: str, train: bool
) -> Iterator[kernels.Row]:
    with fused(fusion):
        found = count_traffic(
            build(args, name, variant), (args.batch, 3, *args.size), train, getattr(torch, args.dtype)
        )
    everything = sum(found.bytes.values())
    shares = {
        name.split('::')[1]: f'{found.bytes[name] / 1e9:.2f} GB in {found.calls[name]}'
        for name, moved in found.bytes.most_common()
        if moved > everything / 50
    }
    totals = {'GB': everything / 1e9, 'operators': sum(found.calls.values())}
    yield kernels.Row(f'{"step" if train else "forward"}, {title}', {**totals, **shares})


def trial(args: argparse.Namespace, device: torch.device) -> Iterator[kernels.Row]:
    """Whether the kernels pass the check that runs before they are used."""
    for dtype in DTYPES:
        found = {}
        for side in args.windows:
            reason = why_unusable(device, dtype, (side, side), 32)
            found[f'window {side}:'] = 'passed' if reason is None else reason
        yield kernels.Row(f'trial of the kernels, {str(dtype).split(".")[1]}', found)


def precision(
    args: argparse.Namespace, title: str, variant: dict[str, Any], fusion: str, x_BCHW: torch.Tensor
) -> Iterator[kernels.Row]:
    """Of one of our variants, beside mmdet's backbone, which has the same parameters."""
    peer = build(args, 'mmdet', {}).get_submodule('model')
    model, mmdet = (of.to(x_BCHW.device) for of in (build(args, OURS, variant), peer))
    with fused(fusion):
        yield from checks.precision(title, model, mmdet, x_BCHW, getattr(torch, args.dtype))


def captured(args: argparse.Namespace, x_BCHW: torch.Tensor) -> Iterator[kernels.Row]:
    yield from checks.captured(build(args, OURS, {}).to(x_BCHW.device), x_BCHW, getattr(torch, args.dtype))


def detector(args: argparse.Namespace, ours: bool, device: torch.device) -> Iterator[kernels.Row]:
    from swin_backbone.openmmlab.runtime import enable_amp, load_config

    cfg = load_config(args.detector, None, None, 'none', with_data=False)
    enable_amp(cfg)
    what = f'training step, {Path(args.detector).stem}'
    yield from models.detector_step(what, cfg, ours, args.batch, args.size, device, args.runs)


def backbone(
    args: argparse.Namespace,
    title: str,
    name: str,
    variant: dict[str, Any],
    fusion: str,
    compiled: bool,
    x_BCHW: torch.Tensor,
    train: bool,
) -> Iterator[kernels.Row]:
    with fused(fusion):
        model = build(args, name, variant)
        if not compiled:
            yield from models.kernels(title, model, x_BCHW, train, getattr(torch, args.dtype), min(args.runs, 5))
        model = cast(torch.nn.Module, torch.compile(model)) if compiled else model
        yield from models.backbone(title, model, x_BCHW, train, getattr(torch, args.dtype), args.runs)


def main() -> int:
    args = parse_args()
    warnings.simplefilter('once')
    rows, failed = [], False
    with stop_on_user_errors():
        outputs = claim(args.json, overwrite=args.overwrite) if args.json else None
    for name, part in parts(args):
        try:
            found = list(part)
        except ImportError as error:
            found = [kernels.Row(name, {'left out:': str(error)})]
        except Exception as error:  # after any error, still measure the rest
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else ''
            found, failed = [kernels.Row(name, {'failed:': f'{type(error).__name__}: {first_line[:200]}'})], True
        for row in found:
            failed = failed or row.values.get('good') is False
            print(kernels.markdown([row]).splitlines()[-1], flush=True)
        rows += found
    if outputs:
        with stop_on_user_errors((OSError,)):
            outputs.write(args.json, json.dumps([row._asdict() for row in rows], indent=1, default=str).encode())
    print(f'\nFor an issue:\n\n{kernels.markdown(rows)}')
    return int(failed)


if __name__ == '__main__':
    run(main)
