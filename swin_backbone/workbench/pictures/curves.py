"""Training curves: read the scalars of mmengine's logs, and draw them."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Points = dict[str, list[tuple[float, float]]]  # (step, value) by name
ScalarsByStep = dict[int, dict[str, Any]]

VAL_LOSS, VAL_ITER = 'val_loss', 'val_iter'  # of ValLossHook
NOT_DRAWN = ('base_lr', 'data_time', 'time', 'epoch', 'iter', 'step', 'memory', 'grad_norm', VAL_ITER)
SCALARS = Path('vis_data', 'scalars.json')  # of mmengine's LocalVisBackend, below a run's folder
LINES = ('-', '--', ':', '-.')  # by log
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#999999')  # Okabe and Ito
MAX_LINES = len(COLOURS)
MAIN_METRIC_ENDS = ('mAP', 'mIoU', 'PQ', 'top1')  # ends of names; details are longer, as bbox_mAP_s
NO_OBJECTS = -1  # COCO's metric for a size without objects


class Log(NamedTuple):
    """Scalars of a training."""

    name: str
    losses: Points  # against iterations, also `val_loss`
    rates: Points  # learning rates, against iterations
    metrics: Points  # of validation, against epochs or iterations
    by_epoch: bool  # whether validation counts epochs


def read_log(path: Path) -> Log:
    """Read a training's scalars.

    Args:
        path: a scalars.json, the folder of a run, or a working folder. The runs of a working folder count as one
            resumed training: later runs replace the equal and later steps of earlier runs.

    Raises:
        ValueError: if there are no scalars, or a file is not in mmengine's form.
    """
    files = [path] if path.is_file() else sorted([*path.glob(str(SCALARS)), *path.glob(str(Path('*', SCALARS)))])
    if not files:
        raise ValueError(f'{str(path)!r} is no scalars.json, and no folder in which mmengine wrote {SCALARS}')
    trained, validated, by_epoch = _merge_runs(files)
    names = sorted({name for scalars in trained.values() for name in scalars if name not in NOT_DRAWN})
    losses = _collect_points(trained, [name for name in names if 'loss' in name])
    rates = _collect_points(trained, [name for name in names if name == 'lr' or name.endswith('/lr')])
    names = sorted({name for scalars in validated.values() for name in scalars if name not in NOT_DRAWN})
    metrics = _collect_points(validated, [name for name in names if 'loss' not in name])
    for step, value in _collect_points(validated, [VAL_LOSS]).get(VAL_LOSS, ()):
        iteration = validated[int(step)].get(VAL_ITER, None if by_epoch else step)
        if iteration is not None:
            losses.setdefault(VAL_LOSS, []).append((iteration, value))
    if not (losses or metrics):
        raise ValueError(f'{str(path)!r} has neither losses nor metrics')
    name = path.name if path.is_dir() or path.name != SCALARS.name else path.absolute().parents[1].name
    metrics = {name: points for name, points in metrics.items() if any(value != NO_OBJECTS for _, value in points)}
    return Log(name, losses, rates, metrics, by_epoch)


def _merge_runs(files: Iterable[Path]) -> tuple[ScalarsByStep, ScalarsByStep, bool]:
    """Return the scalars of iterations and of validations in several logs, and whether validation counts epochs."""
    trained: ScalarsByStep = {}
    validated: ScalarsByStep = {}
    by_epoch = False
    for file in files:
        lines = _read_scalars(file)
        iterations = [scalars for scalars in lines if 'iter' in scalars]
        validations = [scalars for scalars in lines if 'iter' not in scalars]
        by_epoch = any('epoch' in scalars for scalars in iterations) or (by_epoch and not iterations)
        if iterations and trained and iterations[0]['step'] <= min(trained):  # a run from the start
            trained, validated = {}, {}
        for earlier, later in ((trained, iterations), (validated, validations)):
            first = min((scalars['step'] for scalars in later), default=None)
            for step in [step for step in earlier if first is not None and step >= first]:
                del earlier[step]  # of a killed run, repeated by the next run
            earlier.update((scalars['step'], scalars) for scalars in later)
    return trained, validated, by_epoch


def curves_figure(logs: Sequence[Log]) -> Figure:
    """Draw loss terms, learning rate and validation metrics of trainings."""
    figure = Figure(figsize=(11, 4.2), layout='constrained')
    loss, rate, metric = figure.subplots(1, 3, width_ratios=(1.25, 1, 1.25))
    _draw(loss, {log.name: log.losses for log in logs}, 'Loss and its terms', first=('loss', VAL_LOSS))
    _draw(rate, {log.name: log.rates for log in logs}, 'Learning rate')
    _draw(metric, {log.name: log.metrics for log in logs}, 'Validation metrics', marker='o')
    for axis in (loss, rate):
        axis.set_xlabel('iteration', fontsize=9)
    units = {'epoch' if log.by_epoch else 'iteration' for log in logs if log.metrics}
    metric.set_xlabel(' or '.join(sorted(units)) or 'epoch', fontsize=9)
    metric.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # also for a single validation
    rate.ticklabel_format(axis='y', scilimits=(-2, 2))
    figure.suptitle('Training of ' + ', '.join(log.name for log in logs), fontsize=11, wrap=True)
    return figure


def _draw(axis: Axes, by_log: Mapping[str, Points], title: str, first: Sequence[str] = (), marker: str = '') -> None:
    """Draw the curves of several logs: colours by names, styles of lines by logs."""
    axis.set_title(title, fontsize=10)
    names = list(dict.fromkeys(name for points in by_log.values() for name in points))
    names.sort(key=lambda name: (name not in first, not name.endswith(MAIN_METRIC_ENDS), name))
    for log, style, points in zip(by_log, LINES * len(by_log), by_log.values()):
        for name, colour in zip(names[:MAX_LINES], COLOURS):
            if name in points:
                label = name if len(by_log) == 1 else f'{log}: {name}'
                width = 2.2 if name in first else 1.2
                axis.plot(*zip(*points[name]), style, color=colour, lw=width, label=label, marker=marker, ms=3)
    if not names:
        axis.text(0.5, 0.5, 'none yet', ha='center', va='center', transform=axis.transAxes, color='#555555')
        return
    if len(names) > MAX_LINES:
        axis.text(0.01, 1.0, f'{MAX_LINES} of {len(names)} drawn', fontsize=7, transform=axis.transAxes, va='bottom')
    if len(names) > 1 or len(by_log) > 1:
        axis.legend(fontsize=7, framealpha=0.8)
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=8)
    axis.spines[['top', 'right']].set_visible(False)


def _read_scalars(file: Path) -> list[dict[str, Any]]:
    """Return the scalars of each line of a log. The last line of a killed run may be cut off."""
    scalars_of_lines = []
    lines = file.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            scalars = json.loads(line)
            if 'step' in scalars:
                scalars_of_lines.append({**scalars, 'step': int(scalars['step'])})
        except (ValueError, TypeError) as error:
            if number < len(lines):
                raise ValueError(f'{file}, line {number}: not the JSON that mmengine writes') from error
    return scalars_of_lines


def _collect_points(by_step: ScalarsByStep, names: Iterable[str]) -> Points:
    points: Points = defaultdict(list)
    for step in sorted(by_step):
        for name in names:
            value = by_step[step].get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                points[name].append((step, value))
    return dict(points)
