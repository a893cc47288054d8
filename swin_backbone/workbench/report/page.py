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


def render(report: dict[str, Any], thumbnails: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path) -> str:
    """Return the page of a report.

    Args:
        thumbnails: results of `draw` or `draw_labels`, for the first `pictures` and labels of each kind.
        folder: folder of the page. Links to pictures are relative to it.
    """
    metric, names = report['metric'], report['confusion']['names']
    curves = report.get('curves', {})
    counts = np.zeros((len(names), len(names)), np.int64)
    for row, column, count in report['confusion']['counts']:
        counts[row, column] = count
    errors = counts - np.diag(counts.diagonal())
    present = np.flatnonzero(counts.sum(0) + counts.sum(1))
    shown = np.sort(present[(-errors.sum(0) - errors.sum(1))[present].argsort(kind='stable')][:LARGEST_MATRIX])
    pairs = np.argwhere(errors[: len(report['classes']), : len(report['classes'])])  # without background
    confused = [(names[row], names[column], errors[row, column]) for row, column in pairs]
    variables: dict[str, Any] = dict(
        report=report,
        thumbnails=thumbnails,
        worst=sorted(report['classes'], key=lambda row: (row[metric] is None, row[metric], -row[report['unit']])),
        confused=sorted(confused, key=lambda pair: -pair[2]),
        matrix=[(names[i], [(names[j], counts[i, j], i == j) for j in shown], counts[i].sum()) for i in shown],
        left_out=len(present) - len(shown),
        lines={
            key: {name: [*zip(THRESHOLDS, curve[key])] for name, curve in curves.items()} for key in ('precision', 'F1')
        },
        meaning=MEANING,
        values=list_main_metrics(report, report['compared_kind']),
    )
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(link=partial(_make_link, folder=folder), file_name=lambda file: Path(file).name)
    return environment.get_template('page.html').render(variables)


def _make_link(file: str, folder: Path) -> str:
    try:
        return quote(os.fsencode(Path(os.path.relpath(file, folder)).as_posix()))  # a name may be no UTF-8
    except ValueError:  # another drive of Windows
        return Path(file).absolute().as_uri()


def find_common_kind(reports: Sequence[Mapping[str, Any]]) -> Optional[str]:
    """Return the kind of AP that all reports of detectors have, 'segm' (masks) before 'bbox'; None without one."""
    kinds = [[*report.get('sizes', ())] for report in reports]
    return next((kind for kind in reversed(kinds[0]) if all(kind in others for others in kinds)), None)


def list_main_metrics(report: Mapping[str, Any], kind: Optional[str]) -> dict[str, Optional[float]]:
    """Return the values of the main metric of a report: of all classes, and of each.

    Args:
        kind: kind of a detector's AP, see `find_common_kind`. Without a common kind, the result is empty.
    """
    sizes = [*report.get('sizes', ())]
    metric, overall = report['metric'], report['overall']
    if sizes and kind is None:
        return {}
    if kind in sizes[:-1]:
        metric = 'AP of boxes'
        overall = {name: report['sizes'][kind][name] for name in overall}
    return {f'all: {name}': value for name, value in overall.items()} | {
        row['name']: row[metric] for row in report['classes']
    }
