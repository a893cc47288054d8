"""Measure a column of docs/measurements/benchmarks.md for one processor, as rows
of Markdown.

A row is a run of benchmarks.backbones in a separate process. Environment
variables select the instructions: ATEN_CPU_CAPABILITY=avx2
ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2. With AVX2, bfloat16 rows
have no peers, because torch emulates bfloat16 in minutes.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import torch

from swin_backbone.command_line import Parser, positive, run
from swin_backbone.devices import processor

OURS, TORCH, WITH_CP = 'swin_backbone', 'swin_backbone, torch', 'swin_backbone, with_cp'
PEERS = ['--peers', 'mmdet,transformers,timm']
ROWS = {
    'forward, 800x1344, float32': '--shape 800 1344 --runs 7',
    'forward, 800x1344, bfloat16': '--shape 800 1344 --runs 9 --dtype bfloat16',
    'forward, 512x512, float32': '--shape 512 512 --runs 9 --backend torch',
    'forward, 512x512, bfloat16': '--shape 512 512 --runs 11 --dtype bfloat16',
    'training step, 512x512, float32': '--shape 512 512 --runs 7 --train --backend torch',
    'training step, 512x512, bfloat16': '--shape 512 512 --runs 9 --train --dtype bfloat16',
    'stored for backward, 512x512': '--shape 512 512 --train --memory --with-cp',
}
SIDES = 2048, 6144, 10240


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add('out_dir threads', out_dir=dict(default='work_dirs/column', help='JSON of each row'))
    parser.add_argument('--runs', type=positive, metavar='N', help='timed runs of each (default: 7 to 11)')
    parser.add_argument('--dry', action='store_true', help='tiny model and images: shows that the program works')
    return parser.parse_args()


def measure(args: argparse.Namespace, name: str, options: list[str]) -> dict[str, Any]:
    """Run `benchmarks.backbones` with options, and return the values of its rows by the model's name."""
    path = Path(args.out_dir) / f'{name}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'benchmarks.backbones', *options, '--json', str(path), '--overwrite']
    command += ['--busy-machine', '--threads', str(args.threads)]
    if args.dry:
        command += ['--arch', 'nano', '--runs', '1']
    elif args.runs:
        command += ['--runs', str(args.runs)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return {row['model']: row['value'] for row in json.loads(path.read_text())['rows']}


def compare(name: str, values: dict[str, float], float32: Optional[float]) -> str:
    """Return a cell: ours, the best peer, and the ratio. Without peers the ratio is to our own time in float32."""
    scale, unit = (1 / 2**20, 'MiB') if 'stored' in name else (1e3, 'ms')
    cell = f'{values[OURS] * scale:.0f} {unit}'
    peers = {peer: value for peer, value in values.items() if peer.partition(',')[0] != OURS}
    if peers:
        best = min(peers, key=lambda peer: peers[peer])
        cell += f', {best} {peers[best] * scale:.0f}, **{peers[best] / values[OURS]:.2f}**'
    elif float32:
        cell += f', {values[OURS] / float32:.2f} of float32'
    for model in (TORCH, WITH_CP):
        if model in values and 'mmdet' in values:
            cell += f'; {model.partition(", ")[2]} {values[model] * scale:.0f}, {values["mmdet"] / values[model]:.2f}'
    return cell


def lines(args: argparse.Namespace) -> Iterator[str]:
    """Yield the rows of two tables: by processor, and large pictures."""
    yield f'| | {processor()} |\n|---|---|'
    float32: dict[str, float] = {}
    for name, options in ROWS.items():
        emulated = 'bfloat16' in name and os.environ.get('ATEN_CPU_CAPABILITY') == 'avx2'
        words = options.replace('800 1344', '64').replace('512 512', '32').split() if args.dry else options.split()
        values = measure(args, name, [*words, *(['--peers', ''] if emulated else PEERS)])
        kind = name.rpartition(', ')[0]
        float32.setdefault(kind, values[OURS])
        yield f'| {name} | {compare(name, values, float32[kind])} |'
    yield '\n| pixels | time | memory | mmdet: memory |\n|---|---|---|---|'
    for side in (32, 64) if args.dry else SIDES:
        shape = ['--shape', str(side), '--runs', '1']
        seconds = measure(args, f'time {side}', [*shape, '--peers', ''])[OURS]
        peers = '' if side == max(SIDES) else 'mmdet'  # mmdet takes 33 GiB at the largest size
        memory = measure(args, f'memory {side}', [*shape, '--memory', '--peers', peers])
        gibibytes = [f'{memory[model] / 2**30:.2f} GiB' if model in memory else '' for model in (OURS, 'mmdet')]
        yield f'| {side}x{side} | {seconds:.1f} s | {" | ".join(gibibytes)} |'


def main() -> None:
    args = parse_args()
    args.threads = args.threads or 2
    torch.set_num_threads(args.threads)
    for line in lines(args):
        print(line, flush=True)


if __name__ == '__main__':
    run(main)
