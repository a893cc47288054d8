"""The page of a report, by the template page.html."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, FileSystemLoader

from .analyse import THRESHOLDS
from .errors import MEANING

LARGEST_MATRIX = 40  # classes
PAIRS = 12
UNITS = dict(detection='objects', segmentation='pixels', classification='pictures')
TITLES = {
    'no label': 'Predicted, and not labelled',
    'other class': 'Predicted as another class',
    'beside': 'Predicted beside the label',
    'not found': 'Labelled, and nothing predicted near',
}
NOT_SHOWN = ('file', 'kind', 'image_id', 'label_box', 'predicted_box')


def render(report: dict[str, Any], thumbnails: Mapping[str, Sequence[str]], folder: Path) -> str:
    """Return the page of a report.

    Args:
        thumbnails: addresses for the first of `pictures` and for the first of each kind of `labels`; '' for none.
        folder: of the page. Links to pictures are relative to it.
    """
    metric, unit = report['metric'], UNITS[report['task']]
    names, triples = report['confusion']['names'], report['confusion']['counts']
    pairs = [one for one in triples if one[0] != one[1] and max(one[:2]) < len(report['classes'])]  # no background
    confused = sorted(pairs, key=lambda pair: -pair[2])[:PAIRS]
    unknown = float('inf')
    worst = sorted(report['classes'], key=lambda row: unknown if row[metric] is None else row[metric])
    given: dict[str, Any] = dict(
        worst=worst,
        unit=unit,
        pairs=[{'label': names[row], 'predicted': names[column], unit: count} for row, column, count in confused],
        matrix=_matrix(names, triples),
        pictures=zip(report['pictures'], thumbnails['pictures']),
        compared=_compared(report),
    )
    if 'errors' in report:
        given['lines'] = {
            name: [(row, THRESHOLDS, values[name], row == 'all' and 'all') for row, values in report['curves'].items()]
            for name in ('precision', 'F1')
        }
        rows = report['errors']
        given['kinds'] = [(row['kind'], row['cost'], f'{row["count"]} {MEANING[row["kind"]]}') for row in rows]
        given['doubts'] = [
            (TITLES[kind], len(rows), zip(rows, thumbnails[kind])) for kind, rows in report['labels'].items() if rows
        ]
    given['training'] = [_axes(*part) for part in report.get('log', ()) if part[2]]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(link=partial(_link, folder=folder), file_name=lambda file: Path(file).name, facts=_facts)
    return environment.get_template('page.html').render(report=report, **given)


def _link(file: str, folder: Path) -> str:
    """Return the address of a picture."""
    try:
        return quote(Path(os.path.relpath(file, folder)).as_posix())
    except ValueError:  # another drive of Windows
        return Path(file).absolute().as_uri()


def _facts(row: Mapping[str, Any]) -> str:
    shown = {name: f'{value:.2f}' if isinstance(value, float) else value for name, value in row.items()}
    return ', '.join(f'{name} {value}' for name, value in shown.items() if name not in NOT_SHOWN)


def _matrix(names: Sequence[str], triples: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Return names, counts and shares of the rows, of the classes with the most errors."""
    counts = np.zeros((len(names), len(names)), np.int64)
    for row, column, count in triples:
        counts[row, column] = count
    errors = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    shown = np.sort((-errors).argsort(kind='stable')[:LARGEST_MATRIX])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    counts, shares = (part[np.ix_(shown, shown)].tolist() for part in (counts, shares))
    return dict(names=[names[index] for index in shown], counts=counts, shares=shares)


def _axes(title: str, x_label: str, points: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[Any, ...]:
    """Return the arguments of a chart whose axes hold all points."""
    lines = [(name, *zip(*line), 'all' if name == 'loss' else '') for name, line in points.items()]
    low, high = (
        [edge(point[axis] for line in points.values() for point in line) for axis in (0, 1)] for edge in (min, max)
    )
    return title, x_label, lines, low, high


def _compared(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the main metric of this run and of others, overall and by class, with differences."""
    rows = []
    for name, value in main_metric(report).items():
        row: dict[str, Any] = {'name': name, 'this run': value}
        for run in report.get('compared', ()):
            other = run['values'].get(name)
            row[run['name']] = other
            row[f'minus {run["name"]}'] = None if other is None or value is None else value - other
        rows.append(row)
    return rows


def main_metric(report: Mapping[str, Any]) -> dict[str, Optional[float]]:
    """Return the main metric of a report, of all classes and of each."""
    overall = {f'all: {name}': value for name, value in report['overall'].items()}
    return overall | {row['name']: row[report['metric']] for row in report['classes']}
