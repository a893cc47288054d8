"""Compare the losses of a training with SwinBackbone and with the toolbox's own
Swin: equal up to rounding.

CONFIG has a SwinBackbone or a SwinTransformer of mmdet or mmsegmentation;
default: the demos' Mask R-CNN and UPerNet with drop path. --data replaces the
config's data, like in tools/train.py. All trainings have equal weights,
batches and draws:

    theirs            the toolbox's own Swin, layers and convolutions
    ours              SwinBackbone, this package's layers and convolutions
    instructions      theirs, with the instructions of AVX2 alone
    threads           theirs, with 2 threads instead of 1
    ulp               theirs, all weights moved to the next number

Rounding differs in all trainings, and training amplifies the differences. The
last three trainings are the controls. The controls' differences from theirs
make a band, and ours must stay in the band. In bfloat16, ours is compared with
theirs in float32, for N seeds, and the controls are theirs in bfloat16.

The files are parity.json, parity.md and parity.png in DIR. The exit status is
1 if ours leaves the band.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from swin_backbone.commands import Parser, exit_with_message, run
from swin_backbone.options import positive
from swin_backbone.outputs import check_outputs
from swin_backbone.replace import BACKENDS
from swin_backbone.whole_files import write_whole

from .one_training import OPTIMIZERS, Spec

DEMOS = 'configs/demo/mask-rcnn_swin-nano_fpn_shapes.py', 'configs/demo/swin-nano_upernet_shapes.py'
DTYPES = ['float32', 'bfloat16']
WITH_DROP_PATH = {'model.backbone.drop_path_rate': 0.2}
AVX2 = dict(ATEN_CPU_CAPABILITY='avx2', ONEDNN_MAX_CPU_ISA='AVX2', MKL_ENABLE_INSTRUCTIONS='AVX2')

FACTOR = 2  # the band by the controls' largest difference
AHEAD = 20  # iterations: a larger first difference grows earlier
FLOOR = 1e-5  # of the loss, for rounding

COLORS = dict(theirs='black', ours='C3')

console = Console()


Array = np.ndarray[Any, Any]


class Comparison(NamedTuple):
    """Losses, by name, of trainings that differ only by rounding."""

    title: str
    seed: int
    losses: dict[str, list[float]]  # theirs, ours, and the controls

    @property
    def difference(self) -> Array:
        difference: Array = np.abs(np.subtract(self.losses['ours'], self.losses['theirs']))
        return difference

    @property
    def of_controls(self) -> Array:
        """Return the largest difference of a control from theirs so far."""
        controls = [losses for name, losses in self.losses.items() if name not in ('theirs', 'ours')]
        largest: Array = np.maximum.accumulate(np.abs(np.subtract(controls, self.losses['theirs'])).max(0))
        return largest


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('configs', nargs='*', metavar='CONFIG', help="default: the demos' two, with drop path")
    parser.add_argument('--iterations', type=positive, default=200, metavar='N', help='of a training (default: 200)')
    parser.add_argument('--optimizers', nargs='+', choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=DTYPES)
    parser.add_argument('--seeds', type=positive, default=5, metavar='N', help='in bfloat16 (default: 5)')
    parser.add_argument('--backend', choices=list(BACKENDS), default='auto', help='of ours (default: auto)')
    parser.add_argument('--jobs', type=positive, default=1, metavar='N', help='trainings at once (default: 1)')
    parser.add(
        'data annotations out_dir overwrite cfg_options',
        out_dir=dict(default='work_dirs/parity', type=str, help='default: work_dirs/parity'),
    )
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    with exit_with_message():
        out = Path(args.out_dir)
        written = {kind: out / f'parity.{kind}' for kind in ('json', 'md', 'png')}
        check_outputs(*written.values(), overwrite=args.overwrite)
        compared = compare(args)
        write_whole(written['json'], json.dumps([comparison._asdict() for comparison in compared]).encode())
        table = as_table(compared)
        write_whole(written['md'], table.encode())
        write_whole(written['png'], draw(compared))
    console.print(table, highlight=False, markup=False)
    console.print(f'see {written["png"]}', highlight=False)
    return int(any(iteration_out_of_band(compared, comparison) for comparison in compared))


def compare(args: argparse.Namespace) -> list[Comparison]:
    """Run all trainings."""
    with tempfile.TemporaryDirectory() as folder:
        plan = [one for config in args.configs or DEMOS for one in planned(args, config, folder)]
        starts = {spec.start: replace(spec, swin='ours', iterations=0) for *_, named in plan for spec in named.values()}
        runs = {spec: None for *_, named in plan for spec in named.values()}
        with ThreadPoolExecutor(args.jobs) as pool:
            do = partial(train, folder)
            list(track(pool.map(do, starts.values()), 'drawing weights', len(starts), console=console))
            losses = list(track(pool.map(do, runs), 'training', len(runs), console=console))
        of = dict(zip(runs, losses))
        return [Comparison(title, seed, {k: of[spec] for k, spec in named.items()}) for title, seed, named in plan]


def planned(args: argparse.Namespace, config: str, folder: str) -> Iterator[tuple[str, int, dict[str, Spec]]]:
    """Yield title, seed and trainings by name, for a config."""
    options = {**({} if args.configs else WITH_DROP_PATH), **(args.cfg_options or {})}
    for optimizer in args.optimizers:
        for dtype in args.dtypes:
            for seed in range(args.seeds if dtype == 'bfloat16' else 1):
                name = f'{Path(config.replace("::", "/")).stem}_{seed}'
                spec = partial(
                    Spec,
                    config=config,
                    start=f'{folder}/{name}.pth',
                    work_dir=f'{folder}/work',
                    backend=args.backend,
                    optimizer=optimizer,
                    iterations=args.iterations,
                    seed=seed,
                    data=args.data,
                    annotations=args.annotations,
                    cfg_options=repr(options),
                )
                named = dict(theirs=spec(swin='theirs'), ours=spec(bfloat16=dtype == 'bfloat16'))
                if dtype == 'bfloat16':
                    named['bfloat16'] = spec(swin='theirs', bfloat16=True)
                else:
                    named['instructions'] = spec(swin='theirs', avx2=True)
                    named['threads'] = spec(swin='theirs', threads=2)
                    named['ulp'] = spec(swin='theirs', ulp=True)
                yield f'{Path(config.replace("::", "/")).stem}, {optimizer}, {dtype}', seed, named


def train(folder: str, spec: Spec) -> list[float]:
    """Train in a separate process, and return the losses.

    Raises:
        ValueError: if the process fails, with the output of the process.
    """
    spec_file, losses_file = (Path(tempfile.mkdtemp(dir=folder)) / name for name in ('spec.json', 'losses.json'))
    spec_file.write_text(json.dumps(asdict(replace(spec, work_dir=str(spec_file.parent / 'work')))))
    # Waiting threads sleep, and leave the cores to the other trainings.
    env = dict(os.environ, OMP_NUM_THREADS=str(spec.threads), OMP_WAIT_POLICY='passive', **(AVX2 if spec.avx2 else {}))
    command = [sys.executable, '-m', 'benchmarks.one_training', str(spec_file), str(losses_file)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ValueError(f'{spec.config} does not train, as {spec}:\n{done.stdout[-2000:]}')
    losses: list[float] = json.loads(losses_file.read_text())
    return losses


def band(compared: Sequence[Comparison], comparison: Comparison) -> Array:
    """Return the allowed difference of ours from theirs for every iteration: see `FACTOR`, `AHEAD` and `FLOOR`."""
    controls = np.max([one.of_controls for one in compared if one.title == comparison.title], 0)
    later = np.concatenate([controls, np.full(AHEAD, controls[-1])])[AHEAD:]
    allowed: Array = FACTOR * later + FLOOR * np.abs(comparison.losses['theirs'])
    return allowed


def iteration_out_of_band(compared: Sequence[Comparison], comparison: Comparison) -> int:
    """Return the first iteration, from 1, with ours out of the band or not finite, or 0."""
    inside = comparison.difference <= band(compared, comparison)
    return 0 if inside.all() else int(inside.argmin()) + 1


def as_table(compared: Sequence[Comparison]) -> str:
    """Return a table in Markdown: a row for a comparison, with differences of losses from theirs."""
    rows = [
        '| training | seed | 10th iteration: ours | controls | largest: ours | controls '
        '| mean loss of the last quarter: theirs | ours | |',
        f'|{"---|" * 9}',
    ]
    for comparison in compared:
        tenth = min(9, len(comparison.difference) - 1)
        quarter = -max(len(comparison.difference) // 4, 1)
        theirs, ours = (float(np.mean(comparison.losses[name][quarter:])) for name in ('theirs', 'ours'))
        left = iteration_out_of_band(compared, comparison)
        rows.append(
            f'| {comparison.title} | {comparison.seed} '
            f'| {comparison.difference[tenth]:.1e} | {comparison.of_controls[tenth]:.1e} '
            f'| {comparison.difference.max():.2g} | {comparison.of_controls.max():.2g} '
            f'| {theirs:.3f} | {ours:.3f} | {f"leaves the band in iteration {left}" if left else "stays in the band"} |'
        )
    return '\n'.join(rows) + '\n'


def draw(compared: Sequence[Comparison]) -> bytes:
    """Return a PNG of losses above and differences from theirs below, a column for every training of the first seed."""
    from matplotlib.figure import Figure

    shown = [comparison for comparison in compared if not comparison.seed]
    figure = Figure(figsize=(3.4 * len(shown), 5.6), layout='constrained')
    axes = figure.subplots(2, len(shown), squeeze=False, sharex=True)
    for (above, below), comparison in zip(axes.T, shown):
        iterations = np.arange(len(comparison.difference)) + 1
        for name, losses in comparison.losses.items():
            style: dict[str, Any] = dict(color=COLORS.get(name), linewidth=1.4 if name == 'ours' else 0.8)
            above.plot(iterations, losses, label=name, **style)
            if name != 'theirs':
                below.plot(iterations, np.abs(np.subtract(losses, comparison.losses['theirs'])), **style)
        below.fill_between(iterations, 1e-8, band(compared, comparison), color='0.9', label='band')
        below.set(yscale='log', ylim=(1e-8, None), xlabel='iteration')
        above.set_title(comparison.title.replace(', ', '\n', 1), fontsize=8)
        above.legend(fontsize=7)
        below.legend(fontsize=7, loc='lower right')
    axes[0, 0].set_ylabel('loss')
    axes[1, 0].set_ylabel('difference from theirs')
    file = io.BytesIO()
    figure.savefig(file, format='png', dpi=80)
    return file.getvalue()


if __name__ == '__main__':
    run(main)
