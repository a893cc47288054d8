"""Measure SwinBackbone beside peers, implementations of Swin with equal weights,
in one alternating run.

The ratio of a model is the time of the fastest peer by the time of the model,
or the model's memory by the memory of the smallest peer.

With --column, each row is a run in a separate process. Environment variables
select the instructions: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2. With AVX2, bfloat16 rows have no peers, because
torch emulates bfloat16 in minutes.

--keep-memory lets the process use freed memory again, for all models, like the
tools here. Training steps take memory for every stored value.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional, cast

import torch
from rich.console import Console
from rich.table import Table

from swin_backbone import ARCHS, SwinBackbone, SwinV2Backbone, accelerate
from swin_backbone.commands import Parser, exit_with_message, run
from swin_backbone.devices import keep_freed_memory, processor
from swin_backbone.options import ShapeAction, positive
from swin_backbone.outputs import check_outputs
from swin_backbone.replace import BACKENDS
from swin_backbone.whole_files import write_whole
from swin_backbone.workbench.export.export import make_manifest, write_model
from swin_backbone.workbench.export.formats import MODEL_FILES, OPERATOR_PRECISIONS, OPSET, check_format, quiet
from swin_backbone.workbench.export.graph import Graph, build_maps_graph
from swin_backbone.workbench.export.runtime import MANIFEST, RuntimeModel

from . import machine, timing
from .peers import PEERS, Peer, build_peer, largest_difference

OURS = 'swin_backbone'
TORCH, WITH_CP = f'{OURS}, torch', f'{OURS}, with_cp'
ROWS = {  # of a column: the options of each run
    'forward, 800x1344, float32': '--shape 800 1344 --runs 7',
    'forward, 800x1344, bfloat16': '--shape 800 1344 --runs 9 --dtype bfloat16',
    'forward, 512x512, float32': '--shape 512 512 --runs 9 --backend torch',
    'forward, 512x512, bfloat16': '--shape 512 512 --runs 11 --dtype bfloat16',
    'training step, 512x512, float32': '--shape 512 512 --runs 7 --train --backend torch',
    'training step, 512x512, bfloat16': '--shape 512 512 --runs 9 --train --dtype bfloat16',
    'stored for backward, 512x512': '--shape 512 512 --train --memory --with-cp',
}
SIDES = 2048, 6144, 10240  # of a column's large pictures
RUNTIMES = {'onnxruntime': ('onnx', ('fp32',)), 'openvino': ('openvino', ('fp32', 'bf16'))}

Builders = dict[str, Callable[[], torch.nn.Module]]
console = Console()


class Shapes(ShapeAction):
    """`--shape H [W]`, several times: a list of heights and widths."""

    def __call__(self, parser: Any, namespace: Any, *arguments: Any) -> None:
        before = namespace.shape
        super().__call__(parser, namespace, *arguments)
        namespace.shape = [*before, namespace.shape]


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        'batch shape compile threads json overwrite',
        batch=dict(default=1, help='images in a batch (default: 1)'),
        shape=dict(default=[], action=Shapes, help='once for each size (default: 512 512)'),
        compile=dict(help='also measure all, and the backend torch, with torch.compile'),
    )
    parser.add_argument('--train', action='store_true', help='forward and backward instead of forward in eval mode')
    parser.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32', help='type of autocast')
    parser.add_argument('--version', type=int, choices=[1, 2], default=1, help='Swin or Swin V2 (default: 1)')
    parser.add_argument('--peers', help=f'of {",".join(PEERS)} (default: mmdet; for V2 mmpretrain, which has one)')
    parser.add_argument('--arch', choices=list(ARCHS), default='tiny', help='size of the Swin (default: tiny)')
    parser.add_argument(
        '--memory',
        action='store_true',
        help='measure memory: stored with --train, else growth of the process',
    )
    parser.add_argument('--profile', action='store_true', help='print the time of the compiled library by kind of work')
    parser.add_argument(
        '--column', action='store_true', help="print a processor's column of docs/measurements/benchmarks.md"
    )
    parser.add_argument(
        '--backend',
        nargs='+',
        choices=list(BACKENDS),
        default=[],
        metavar='NAME',
        help=f'also measure backends of this name: {", ".join(BACKENDS)}',
    )
    parser.add_argument('--int8', action='store_true', help='also measure products in eight bits')
    parser.add_argument('--with-cp', action='store_true', help='also measure with blocks recomputed in backward')
    parser.add_argument('--runtime', default='', help='exported models in onnxruntime,openvino, and ours in torch')
    parser.add_argument('--runs', type=positive, default=5, metavar='N', help='timed runs of each (default: 5)')
    parser.add_argument('--keep-memory', action='store_true', help='use freed memory again, like the tools here')
    parser.add_argument('--busy-machine', action='store_true', help='permit other programs')
    args = parser.parse_args()
    args.shape = args.shape or [(512, 512)]
    if args.peers is None:
        args.peers = 'mmdet' if args.version == 1 else 'mmpretrain'
    unknown = set(filter(None, args.peers.split(','))) - PEERS.keys()
    if unknown:
        parser.error(f'--peers takes {",".join(PEERS)}, got {",".join(sorted(unknown))}')
    if set(filter(None, args.runtime.split(','))) - RUNTIMES.keys():
        parser.error(f'--runtime takes {",".join(RUNTIMES)}, got {args.runtime}')
    return args


def build(name: str, version: int, arch: str, variant: dict[str, Any]) -> torch.nn.Module:
    """Build a model. All models have equal weights."""
    torch.manual_seed(0)
    ours = (SwinBackbone, SwinV2Backbone)[version - 1](arch=arch, drop_path_rate=0.0, **variant)
    return build_peer(name, arch, ours) if name in PEERS else ours


def build_all(args: argparse.Namespace) -> Builders:
    """Return builders by the name of the model. Print a warning for a missing peer."""
    builders: Builders = {}
    for peer in filter(None, args.peers.split(',')):
        try:
            build(peer, args.version, args.arch, {})
            builders[peer] = partial(build, peer, args.version, args.arch, {})
        except (ImportError, RuntimeError) as error:
            console.print(f'{peer} is left out: {error}', style='yellow', markup=False)
    variants: dict[str, dict[str, Any]] = {OURS: {}}
    # Beside torch, compiled, it shows what a graph gains by the library.
    backends = dict.fromkeys([*args.backend, *(['torch'] if args.compile else [])])
    variants.update({f'{OURS}, {name}': dict(backend=name) for name in backends})
    if args.with_cp:
        variants[f'{OURS}, with_cp'] = dict(with_cp=True)
    ours = partial(build, OURS, args.version, args.arch)
    builders.update({name: partial(ours, variant) for name, variant in variants.items()})
    if args.int8:
        builders[f'{OURS}, int8'] = lambda: accelerate(ours({}), precision='int8')
    return builders


def measure_times(args: argparse.Namespace, builders: Builders, shape: tuple[int, int]) -> dict[str, timing.Spread]:
    x_BCHW = torch.randn(args.batch, 3, *shape)
    models = {name: make() for name, make in builders.items()}
    for name, model in models.items():
        if isinstance(model, Peer):
            difference = largest_difference(models[OURS].eval(), model.eval(), x_BCHW)
            console.print(f'{shape[0]}x{shape[1]}: largest difference of outputs to {name}: {difference:.1e}')
    if args.runtime:
        with tempfile.TemporaryDirectory() as beside:
            models = {name: model.eval() for name, model in models.items()}
            runs = exported_runs(models, args.runtime.split(','), x_BCHW, args.threads, Path(beside))
            for dtype in (torch.float32, torch.bfloat16):
                eager = timing.make_run(models[OURS], x_BCHW, False, dtype)
                runs[f'{OURS}, torch {str(dtype).removeprefix("torch.")}'] = eager
            return timing.alternate(runs, args.runs, pause=0.2)
    if args.compile:
        models.update(
            {f'{name}, compiled': cast(torch.nn.Module, torch.compile(model)) for name, model in models.items()}
        )
    dtype = getattr(torch, args.dtype)
    runs = {name: timing.make_run(m, x_BCHW, args.train, dtype) for name, m in models.items()}
    return timing.alternate(runs, args.runs)


def measure_bytes(args: argparse.Namespace, builders: Builders, shape: tuple[int, int]) -> dict[str, timing.Spread]:
    """Return the bytes of each model: one number, without a spread."""
    sizes: dict[str, int] = {}
    images = args.batch, 3, *shape
    for name, make in builders.items():
        if args.train:
            sizes[name] = timing.bytes_kept(make(), torch.randn(images), getattr(torch, args.dtype))
        else:
            sizes[name] = timing.peak_rss_growth(make, images, args.threads)
    return {name: timing.Spread(size, size, size) for name, size in sizes.items()}


def show(title: str, rows: list[dict[str, Any]], is_memory: bool) -> None:
    unit, scale, digits = ('MiB', 1 / 2**20, 3) if is_memory else ('ms', 1e3, 2)
    table = Table(title=title, title_justify='left')
    for column in ('model', unit, 'spread', 'ratio'):
        table.add_column(column, justify='left' if column == 'model' else 'right')
    for row in rows:
        spread = '' if is_memory else f'{row["fastest"] * scale:.0f}-{row["slowest"] * scale:.0f}'
        ratio = '' if row['ratio'] is None else f'{row["ratio"]:.{digits}f}'
        table.add_row(row['model'], f'{row["value"] * scale:.1f}', spread, ratio)
    console.print(table)


def check_quiet(args: argparse.Namespace) -> None:
    """Raise ValueError if other programs use the CPU."""
    if not args.memory and not args.busy_machine:
        machine.require_quiet()


def main() -> None:
    args = parse_args()
    if args.profile:
        with exit_with_message():
            check_quiet(args)
            return timing.print_profile(args.arch, args.shape, getattr(torch, args.dtype), args.train)
    if args.column:
        for line in column(args.threads or 2):
            print(line, flush=True)
        return None
    machine.pin_threads(args.threads)
    if args.keep_memory:
        keep_freed_memory()
    where = processor()
    what = 'training step' if args.train else 'forward'
    rows: list[dict[str, Any]] = []
    with exit_with_message():
        check_outputs(args.json, overwrite=args.overwrite)
        check_quiet(args)
        builders = build_all(args)
        for shape in args.shape:
            title = f'Swin {args.arch}, {what}, {args.batch} x {shape[0]}x{shape[1]}, {args.dtype}; {where}'
            measure = measure_bytes if args.memory else measure_times
            values = measure(args, builders, shape)
            of_peers = [value.median for name, value in values.items() if name.split(',')[0] in PEERS]
            best = min(of_peers or [values[OURS].median if OURS in values else min(values.values()).median])
            of_shape = []
            for name, value in values.items():
                parts = (value.median, best) if args.memory else (best, value.median)
                ratio = parts[0] / parts[1] if parts[1] else None  # the process did not grow
                row = dict(model=name, height=shape[0], width=shape[1], value=value.median, ratio=ratio)
                of_shape.append({**row, 'fastest': value.fastest, 'slowest': value.slowest})
            show(title, of_shape, args.memory)
            rows += of_shape
    if args.json:
        settings = {key: str(value) for key, value in vars(args).items()}
        data = json.dumps(dict(machine=where, settings=settings, rows=rows), indent=1)
        with exit_with_message((OSError,)):
            write_whole(args.json, data.encode())


# --- a column of the documentation ------------------------------------------------------------------------------------


def column(threads: int) -> Iterator[str]:
    """Yield the lines of two tables in Markdown: by processor, and large pictures."""
    torch.set_num_threads(threads)
    yield f'| | {processor()} |\n|---|---|'
    float32: dict[str, float] = {}
    for name, options in ROWS.items():
        emulated = 'bfloat16' in name and os.environ.get('ATEN_CPU_CAPABILITY') == 'avx2'
        values = measure_apart([*options.split(), '--peers', '' if emulated else 'mmdet,transformers,timm'], threads)
        kind = name.rpartition(', ')[0]
        float32.setdefault(kind, values[OURS])
        yield f'| {name} | {compare(name, values, float32[kind])} |'
    yield '\n| pixels | time | memory | mmdet: memory |\n|---|---|---|---|'
    for side in SIDES:
        shape = ['--shape', str(side), '--runs', '1']
        seconds = measure_apart([*shape, '--peers', ''], threads)[OURS]
        peers = '' if side == max(SIDES) else 'mmdet'  # mmdet takes 33 GiB at the largest size
        memory = measure_apart([*shape, '--memory', '--peers', peers], threads)
        gibibytes = [f'{memory[model] / 2**30:.2f} GiB' if model in memory else '' for model in (OURS, 'mmdet')]
        yield f'| {side}x{side} | {seconds:.1f} s | {" | ".join(gibibytes)} |'


def measure_apart(options: Sequence[str], threads: int) -> dict[str, float]:
    """Run this program with options in another process, and return the values of its rows by the model's name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'figures.json')
        more = ['--json', str(path), '--busy-machine', '--threads', str(threads)]
        command = [sys.executable, '-m', 'benchmarks.backbones', *options, *more]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return {row['model']: row['value'] for row in json.loads(path.read_text())['rows']}


def compare(name: str, values: dict[str, float], float32: float) -> str:
    """Return a cell: ours, the best peer, and the ratio. Without peers the ratio is to our own time in float32."""
    scale, unit = (1 / 2**20, 'MiB') if 'stored' in name else (1e3, 'ms')
    cell = f'{values[OURS] * scale:.0f} {unit}'
    peers = {peer: value for peer, value in values.items() if peer.partition(',')[0] != OURS}
    if peers:
        best = min(peers, key=lambda peer: peers[peer])
        cell += f', {best} {peers[best] * scale:.0f}, **{peers[best] / values[OURS]:.2f}**'
    else:
        cell += f', {values[OURS] / float32:.2f} of float32'
    for model in (TORCH, WITH_CP):
        if model in values and 'mmdet' in values:
            cell += f'; {model.partition(", ")[2]} {values[model] * scale:.0f}, {values["mmdet"] / values[model]:.2f}'
    return cell


# --- exported models --------------------------------------------------------------------------------------------------


def exported_runs(
    models: dict[str, torch.nn.Module],
    runtimes: Sequence[str],
    image: torch.Tensor,
    threads: Optional[int],
    beside: Path,
) -> dict[str, Callable[[], object]]:
    """Return functions that run the backbones as ONNX models, by name, sizes and runtime.

    Args:
        models: backbones by name, exported for the size of the image. `tools/export.py` exports ours, also with free
            sizes and with the compiled library's operators; `torch.onnx.export` exports the rest.
        runtimes: names from `RUNTIMES`; OpenVINO also runs in bf16.
        beside: an empty folder for the files.
    """
    runs: dict[str, Callable[[], object]] = {}

    def add(name: str, graph: Graph, folder: Path, precisions: Optional[Sequence[str]] = None) -> None:
        for runtime in runtimes:
            kind, usual = RUNTIMES[runtime]
            for precision in precisions or usual:
                check_format(kind, precision, None if precisions is None else 'swin')
                manifest = make_manifest(graph, folder, kind, precision)
                (folder / MANIFEST).write_text(json.dumps(manifest))
                run = RuntimeModel(folder, threads=threads).run
                runs[f'{name}, {runtime} {precision}'] = partial(run, [image.numpy()])

    for name, model in models.items():
        one_size = build_maps_graph(model, 'backbone', (image.shape[2], image.shape[3]))
        folder = beside / name
        folder.mkdir()
        if name != OURS:
            _write_by_torch(one_size, image[:1], folder / MODEL_FILES['onnx'])
            add(f'{name}, fixed size', one_size, folder)
            continue
        free = build_maps_graph(model, 'backbone', None)
        for sizes, graph in (('fixed size', one_size), ('free sizes', free)):
            (folder / sizes).mkdir()
            write_model(graph, folder / sizes, 'onnx', 'fp32')
            add(f'{name}, {sizes}', graph, folder / sizes)
        for precision in OPERATOR_PRECISIONS['swin']:
            (folder / precision).mkdir()
            write_model(free, folder / precision, 'onnx', precision, operators='swin')
            add(f'{name}, operators', free, folder / precision, [precision])
    return runs


def _write_by_torch(graph: Graph, image: torch.Tensor, path: Path) -> None:
    inputs, outputs = ([port.name for port in ports] for ports in (graph.inputs, graph.outputs))
    names: Any = dict(input_names=inputs, output_names=outputs)
    with torch.no_grad(), quiet():
        torch.onnx.export(graph.module, (image,), str(path), dynamo=True, opset_version=OPSET, verbose=False, **names)


if __name__ == '__main__':
    run(main)
