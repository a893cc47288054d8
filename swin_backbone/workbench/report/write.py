"""Write the report on labels and results: report.json and index.html."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional, Union

from ...outputs import REPORT_JSON, check_outputs, lock_folder, make_folder
from ...whole_files import write_whole
from ..data.media import read_picture
from ..pictures.colours import make_palette
from .analyse import report_detection
from .confusion import WORST, report_classification
from .detection import track
from .files import (
    IGNORED,
    count_label_pixels,
    find_pictures,
    find_task,
    list_tested_pictures,
    load_json,
    read_evaluations,
    read_scores,
)
from .page import find_common_kind, list_main_metrics, render
from .thumbnails import Read, draw, draw_labels

INDEX_HTML = 'index.html'
DrawnReport = tuple[dict[str, Any], dict[str, list[Any]]]  # a report, and its thumbnails
AnyPath = Union[str, Path]


def write_report(
    out_dir: AnyPath,
    labels: AnyPath,
    results: AnyPath,
    pictures: Optional[AnyPath] = None,
    *,
    classes: Optional[Sequence[str]] = None,
    others: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    overwrite: bool = False,
    about: Optional[Mapping[str, Any]] = None,
    summarize: Optional[Callable[[Any, Any], str]] = None,
    read: Read = read_picture,
) -> dict[str, Any]:
    """Write `out_dir`/report.json and index.html. Equal files give equal bytes.

    Args:
        labels, results: files or folders of any program, see the head of report/files.py.
        pictures: folder of the pictures, which the names in the labels are relative to. None: no picture is shown.
        classes: names of the classes of label PNGs; None: the names in classes.txt or, without it, the values.
        others: reports to compare, by name: see `read_reports`.
        about: further entries of the report: `title`, `checkpoint`, `tested_on`, `metrics`, `config` and `log`.
        summarize: returns the differences of two configs; None: settings are not compared.
        read: reads a picture in the orientation of labels and results. Default: turned by the orientation tag.

    Returns:
        The contents of report.json.

    Raises:
        ValueError: if labels and results are of no task, see `find_task`.
        FileExistsError: see `check_outputs`.
        FolderInUse: if another process reports there.
    """
    folder, labels, results = Path(out_dir), Path(labels), Path(results)
    task = find_task(labels, results)
    check = partial(check_outputs, folder / REPORT_JSON, folder / INDEX_HTML, overwrite=overwrite)
    check()
    report_task = dict(detection=_report_objects, segmentation=_report_pixels, classification=_report_scores)[task]
    report, thumbnails = report_task(labels, results, None if pictures is None else Path(pictures), classes, read)
    report.update(title=results.name, checkpoint=str(results), metrics={}, config={}, log=None)
    report.update(about or {})
    kind = report['compared_kind'] = find_common_kind([report, *others.values()])
    report['compared'] = [
        dict(
            name=name,
            values=list_main_metrics(other, kind),
            settings=summarize(other['config'], report['config']) if summarize else '',
        )
        for name, other in others.items()
    ]
    make_folder(folder)
    with lock_folder(folder, 'reports in'):
        check()  # another process may have ended in between
        write_whole(folder / REPORT_JSON, json.dumps(report, allow_nan=False).encode())
        write_whole(folder / INDEX_HTML, render(report, thumbnails, folder).encode(errors='backslashreplace'))
    return report


def _report_objects(labels: Path, results: Path, pictures: Optional[Path], _classes: Any, read: Read) -> DrawnReport:
    evaluations = read_evaluations(labels, results)
    names = list_tested_pictures(evaluations[-1].truth)
    files = dict(zip(names, find_pictures(pictures, names.values())))
    report, thumbnails = report_detection(evaluations, files, read)
    return dict(report, tested=len(names)), thumbnails


def _report_pixels(
    labels: Path, results: Path, pictures: Optional[Path], classes: Optional[Sequence[str]], read: Read
) -> DrawnReport:
    counts, palette = count_label_pixels(labels, results, classes)
    report = counts.summarize()
    files = find_pictures(pictures, [row['file'] for row in report['pictures']])
    for row, file in zip(report['pictures'], files):
        row['file'] = file
    colours = make_palette(len(counts.classes)) if palette is None else palette
    worst = zip(report['pictures'], track(counts.worst, 'drawing'))
    drawn = [
        draw_labels(row['file'], label, predicted, colours, IGNORED, read) for row, (_, _, label, predicted) in worst
    ]
    return dict(report, tested=len(counts.pictures)), dict(pictures=drawn)


def _report_scores(labels: Path, results: Path, pictures: Optional[Path], _classes: Any, read: Read) -> DrawnReport:
    names, labels_N, scores_NK, classes = read_scores(labels, results)
    report = report_classification([*find_pictures(pictures, names)], labels_N, scores_NK, classes)
    drawn = [draw(row['file'], read) for row in track(report['pictures'][:WORST], 'drawing')]
    return dict(report, tested=len(names)), dict(pictures=drawn)


def read_reports(runs: Iterable[AnyPath], task: str) -> dict[str, dict[str, Any]]:
    """Return the reports of runs by their names.

    Args:
        runs: reports, or folders with report.json or report/report.json.

    Raises:
        ValueError: if a folder has no report, or one of another task.
    """
    reports = {}
    for run in map(Path, runs):
        path = next((path for path in (run, run / REPORT_JSON, run / 'report' / REPORT_JSON) if path.is_file()), None)
        if path is None:
            raise ValueError(f'--compare takes a folder with {REPORT_JSON} or report/{REPORT_JSON}, got {str(run)!r}')
        report = reports[str(run)] = load_json(path)
        task_of_report = report.get('task') if isinstance(report, dict) else None
        if task_of_report != task:
            raise ValueError(f'--compare takes reports of {task}, got {str(path)!r} of {task_of_report}')
    return reports
