"""Check the backends on a GPU and measure time and memory, as a table for an
issue.

A part that fails has a row with the reason, and the next part runs. The exit
status is 1 if a part failed, or if outputs are wrong.

Layout: B batch, C channels, H W height and width.
"""

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

if not torch.cuda.is_available():
    os.environ.setdefault('TRITON_INTERPRET', '1')  # Triton reads the variable when a kernel is defined

from swin_backbone import ARCHS, SwinBackbone
from swin_backbone.commands import Parser, exit_with_message, run
from swin_backbone.options import positive
from swin_backbone.outputs import check_outputs
from swin_backbone.whole_files import write_whole

from . import machine, timing
from .peers import PEERS, build_peer

OURS: dict[str, dict[str, Any]] = {
    'swin_backbone': {},
    'swin_backbone, torch': dict(backend='torch'),
    'swin_backbone, triton': dict(backend='triton'),
    'swin_backbone, with_cp': dict(with_cp=True),
}
WORSE = 2  # limit of a backend's error by the torch backend's error
# Kernels of a GPU and operators of a CPU by a pattern in their names. The first match counts.
PARTS = {
    'attention': r'attend|fmha|flash|attention|soft_?max',
    'matrix products': r'gemm|cutlass|nvjet|xmma|cublas|cudnn|splitk|[^a-z]b?mm\b|addmm|linear|conv',
    'norm': r'norm|gammabeta',
    'GELU': r'gelu',
    'copies': r'copy|memcpy|catarray|pad|roll|index|clone|fill|memset|zero',
    'sums and the rest': r'',
}


class Row(NamedTuple):
    """A row of the table: a name, and values by name."""

    name: str
    values: dict[str, Any]


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('--arch', choices=list(ARCHS), default='tiny', help='default: tiny')
    parser.add(
        'batch shape compile json overwrite',
        batch=dict(default=2, help='images (default: 2)'),
        shape=dict(default=(800, 1344), help='default: 800 1344'),
        compile=dict(help='measure all backbones with torch.compile too'),
    )
    parser.add_argument('--dtype', choices=['bfloat16', 'float16'], default='bfloat16', help='type of autocast')
    parser.add_argument('--peers', default='mmdet,timm', help=f'of {",".join(PEERS)} (default: mmdet,timm)')
    parser.add_argument('--runs', type=positive, default=20, metavar='N', help='timed runs of each (default: 20)')
    parser.add_argument('--dry', action='store_true', help='show on a CPU, with a tiny model, that the program works')
    parser.add_argument('--paper', action='store_true', help='count kernels and bytes of a forward, without a GPU')
    args = parser.parse_args()
    if args.paper:
        pass
    elif args.dry:
        args.arch, args.shape, args.batch, args.runs = 'nano', (64, 64), 1, 1
    elif not torch.cuda.is_available():
        parser.error(f'torch {torch.__version__} sees no GPU; --dry runs on a CPU')
    unknown = set(filter(None, args.peers.split(','))) - PEERS.keys()
    if unknown:
        parser.error(f'--peers takes {",".join(PEERS)}, got {",".join(sorted(unknown))}')
    return args


def build(name: str, arch: str) -> nn.Module:
    """Build a backbone. All have the same weights."""
    torch.manual_seed(0)
    if name in OURS:
        return SwinBackbone(arch=arch, drop_path_rate=0.0, **OURS[name])
    return build_peer(name, arch, SwinBackbone(arch=arch, drop_path_rate=0.0))


def describe(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """Yield what the device reaches."""
    values: dict[str, Any] = {'torch': torch.__version__}
    if device.type == 'cuda':
        properties = torch.cuda.get_device_properties(device)
        values.update({'GPU': properties.name, 'GiB': properties.total_memory / 2**30, 'CUDA': torch.version.cuda})
    values['TFLOP/s of a large product'] = machine.matmul_rate(device, dtype) / 1e12
    yield Row('machine', values)


def compare(name: str, args: argparse.Namespace, x_BCHW: Tensor, dtype: torch.dtype) -> Iterator[Row]:
    """Yield how far maps and gradients under autocast are from float32, relative to the error of plain torch."""
    exact = _maps_and_gradients('swin_backbone, torch', args.arch, x_BCHW, torch.float32)
    errors = [
        _errors(_maps_and_gradients(one, args.arch, x_BCHW, dtype), exact) for one in (name, 'swin_backbone, torch')
    ]
    good = all(error <= WORSE * most + 1e-6 for error, most in zip(*errors))  # False for NaN
    shown = [f'{error:.1e} beside {most:.1e}' for error, most in zip(*errors)]
    yield Row(f'precision, {name}', {'good': good, 'maps': '; '.join(shown[:-1]), 'gradients': shown[-1]})


def _maps_and_gradients(name: str, arch: str, x_BCHW: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Return the maps in eval mode, and all gradients of parameters as one tensor."""
    model = build(name, arch).to(x_BCHW.device).eval()
    with torch.autocast(x_BCHW.device.type, dtype, enabled=dtype != torch.float32):
        maps = list(model(x_BCHW))
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(x.shape, generator=generator).to(x) for x in maps]
    _, parameters = zip(*sorted(model.named_parameters()))
    gradients = torch.autograd.grad(maps, parameters, grads)
    return [*(x.detach() for x in maps), torch.cat([x.flatten() for x in gradients])]


def _errors(values: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((x.double() - y.double()).norm() / y.double().norm()) for x, y in zip(values, exact)]


def measure(
    name: str, args: argparse.Namespace, x_BCHW: Tensor, dtype: torch.dtype, train: bool, compiled: bool
) -> Iterator[Row]:
    """Yield time, peak memory and the time of each part of a forward or a training step."""
    model: Any = build(name, args.arch).to(x_BCHW.device)
    title = f'{"step" if train else "forward"}, {name}{", compiled" if compiled else ""}'
    model = torch.compile(model) if compiled else model
    once = timing.make_run(model, x_BCHW, train, dtype)
    values: dict[str, Any] = {'ms': 1e3 * timing.alternate({name: once}, args.runs)[name].median}
    if x_BCHW.device.type == 'cuda':
        values['GiB'] = timing.peak_device_growth(once, x_BCHW.device) / 2**30
    if not compiled:
        values.update(_parts(once, x_BCHW.device, min(args.runs, 5)))
    yield Row(title, values)


def _parts(once: Callable[[], None], device: torch.device, runs: int) -> dict[str, float]:
    """Return the milliseconds of each of `PARTS` in a run, and the number of kernels."""
    is_cuda = device.type == 'cuda'
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]) as profiled:
        for _ in range(runs):
            once()
    seconds: Counter[str] = Counter()
    calls = 0
    for event in profiled.key_averages():
        spent = event.self_device_time_total if is_cuda else event.self_cpu_time_total
        # On a GPU a kernel is an event of its own beside the operator that launched the kernel.
        if spent and (not is_cuda or 'CUDA' in str(event.device_type)):
            part = next(part for part, pattern in PARTS.items() if re.search(pattern, event.key.lower()))
            seconds[part] += spent / runs / 1e3
            calls += event.count // runs
    return {**{f'{part}, ms': seconds[part] for part in PARTS if seconds[part]}, 'kernels': calls}


def count(name: str, args: argparse.Namespace) -> Iterator[Row]:
    """Yield kernels and bytes of a forward: under autocast, of ours with weights in its dtype, and in float32."""
    from . import paper

    values: dict[str, Any] = {}
    half, single, shape = getattr(torch, args.dtype), torch.float32, (args.batch, 3, *args.shape)

    def add(title: str, traffic: paper.Traffic) -> None:
        values[f'{title}, GiB'] = sum(traffic.bytes.values()) / 2**30
        values[f'{title}, kernels'] = sum(traffic.kernels.values())

    ways = {args.dtype: (single, half), f'{args.dtype} weights': (half, single), 'float32': (single, single)}
    for title, (weights, autocast) in ways.items():
        if weights == half and name not in OURS:
            continue  # mmdet's Swin makes masks in float32, which half precision does not take
        add(title, paper.count(build(name, args.arch).to(weights), shape, autocast))
        if args.compile:
            add(f'{title}, compiled', paper.count_compiled(build(name, args.arch).to(weights), shape, autocast))
    if name in OURS:
        add(f'{args.dtype}, casts kept', paper.count(build(name, args.arch), shape, half, keep_casts=True))
    yield Row(f'on paper, {name}', values)


def parts(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
    """Yield the parts of the report with their names."""
    peers = tuple(filter(None, args.peers.split(',')))
    if args.paper:
        for name in ('swin_backbone', 'swin_backbone, torch', *peers):
            yield name, partial(count, name, args)
        return
    device, dtype = torch.device('cpu' if args.dry else 'cuda'), getattr(torch, args.dtype)
    x_BCHW = torch.randn(args.batch, 3, *args.shape, device=device)
    yield 'machine', partial(describe, device, dtype)
    for name in OURS:
        yield f'precision, {name}', partial(compare, name, args, x_BCHW, dtype)
    for train in (False, True):
        for compiled in (False, True) if args.compile else (False,):
            for name in (*OURS, *peers):
                yield name, partial(measure, name, args, x_BCHW, dtype, train, compiled)


def markdown(row: Row) -> str:
    """Return a row of a table in Markdown."""
    values = {key: f'{value:.4g}' if isinstance(value, float) else value for key, value in row.values.items()}
    return f'| {row.name} | {"; ".join(f"{key}: {value}" for key, value in values.items())} |'


def main() -> int:
    args = parse_args()
    with exit_with_message():
        check_outputs(args.json, overwrite=args.overwrite)
    rows: list[Row] = []
    is_bad = False
    print('| part | figures |\n|---|---|')
    for name, part in parts(args):
        try:
            results = list(part())
        except ImportError as error:
            results = [Row(name, {'left out': str(error)})]
        except Exception as error:  # the next parts are measured after any error
            text = str(error).strip().partition('\n')[0]
            results, is_bad = [Row(name, {'failed': f'{type(error).__name__}: {text[:200]}'})], True
        for row in results:
            is_bad = is_bad or row.values.get('good') is False
            print(markdown(row), flush=True)
        rows += results
    if args.json:
        with exit_with_message((OSError,)):
            data = [dict(name=row.name, **row.values) for row in rows]
            write_whole(args.json, json.dumps(data, indent=1).encode())
    return int(is_bad)


if __name__ == '__main__':
    run(main)
