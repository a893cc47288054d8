"""Test a model, and write the report on its predictions: report.json and index.html."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import track

from ...openmmlab.data.media import read_picture
from ...openmmlab.swap.diff import summarize
from ...outputs import check_outputs, make_folder
from ...pictures.colours import distinct_colours
from ...pictures.curves import read_log
from ...whole_files import write_whole
from .analyse import detection_report
from .confusion import WORST, PixelCounts, classification_report
from .page import main_metric, render
from .thumbnails import Drawing, draw, draw_labels

NAME, PAGE = 'report.json', 'index.html'
NOT_COMPARED = ('work_dir', 'load_from', 'resume', 'launcher')  # settings that differ between equal trainings


class _Predictions(Hook):
    """Keep labels and predictions of a test."""

    def __init__(self, scope: str, classes: Sequence[str]):
        self.scope, self.kept = scope, []  # type: str, list[Any]
        self.pixels = PixelCounts(classes)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """See `Hook`."""
        if self.scope == 'mmdet':
            pairs = zip(outputs, coco_metric(runner).results[-len(outputs) :])
            self.kept += [(sample.img_id, sample.img_path, result) for sample, (_, result) in pairs]
        for sample in outputs if self.scope != 'mmdet' else ():
            if self.scope == 'mmseg':
                labels, predicted = (
                    one.data.squeeze().cpu().numpy() for one in (sample.gt_sem_seg, sample.pred_sem_seg)
                )
                self.pixels.add(sample.img_path, labels, predicted)
            else:
                self.kept.append((sample.img_path, sample.gt_label.item(), sample.pred_score.cpu().numpy()))


def add_coco_metric(cfg: Config) -> None:
    """Let a detector be evaluated as by COCO too, whose numbers the report has, if the config has no CocoMetric."""
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    if cfg.get('default_scope') == 'mmdet' and not any(
        one.type in ('CocoMetric', 'mmdet.CocoMetric') for one in evaluators
    ):
        cfg.test_evaluator = [*evaluators, dict(type='mmdet.CocoMetric')]


def coco_metric(runner: Runner) -> Any:
    """Return mmdet's CocoMetric of a test."""
    return next(one for one in runner.test_loop.evaluator.metrics if type(one).__name__ == 'CocoMetric')


def write_report(
    runner: Runner,
    test: Callable[[], Mapping[str, float]],
    out_dir: Union[str, Path],
    checkpoint: str,
    compare: Sequence[Union[str, Path]] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Test, and write `out_dir`/report.json and index.html. The curves are those of the checkpoint's folder.

    Args:
        test: runs the test of `runner`, with a CocoMetric for a detector.
        compare: folders of runs or of their reports.

    Returns:
        The contents of report.json.

    Raises:
        ValueError: for another toolbox, a run to compare that has no such report, or data without labels.
        FileExistsError: see `check_outputs`.
    """
    folder, scope = Path(out_dir), runner.cfg.get('default_scope')
    if scope not in ('mmdet', 'mmseg', 'mmpretrain'):
        raise ValueError(f'a report takes a model of mmdet, mmseg or mmpretrain, got default_scope={scope!r}')
    others = [_read(run) for run in compare]
    check_outputs(folder / NAME, folder / PAGE, overwrite=overwrite)
    make_folder(folder)
    meta = runner.test_dataloader.dataset.metainfo
    hook = _Predictions(scope, meta['classes'])
    runner.register_hook(hook)
    metrics = {name: float(value) for name, value in test().items()}
    report, thumbnails = dict(mmdet=_of_boxes, mmseg=_of_pixels, mmpretrain=_of_pictures)[scope](runner, hook)
    report.update(
        title=f'{Path(runner.cfg.filename or "model").stem}: {Path(checkpoint).name}',
        checkpoint=checkpoint,
        tested=len(runner.test_dataloader.dataset),
        metrics=metrics,
        log=_log(Path(checkpoint).parent),
        config=json.loads(json.dumps(runner.cfg.to_dict(), default=repr)),
    )
    report['compared'] = [_compared(report, name, other) for name, other in others]
    write_whole(folder / NAME, json.dumps(report).encode())
    write_whole(folder / PAGE, render(report, thumbnails, folder).encode())
    return report


def summary(report: Mapping[str, Any]) -> str:
    """Return the main numbers of a report in one line."""
    words = [f'{name} {value:.3f}' for name, value in report['overall'].items() if value is not None]
    if 'best' in report:
        words.append(
            f'best threshold {report["best"]["threshold"]:.2f}, mainly errors of {report["errors"][0]["kind"]}'
        )
        words.append(f'{sum(map(len, report["labels"].values()))} labels to check')
    return ', '.join(words)


Part = tuple[dict[str, Any], dict[str, list[str]]]  # of the report, and addresses of thumbnails


def _of_boxes(runner: Runner, hook: _Predictions) -> Part:
    metric = coco_metric(runner)
    kinds = [kind for kind in ('bbox', 'segm') if kind in metric.metrics]
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for image_id, _, found in hook.kept:
        boxes = found['bboxes'].tolist()  # mmdet subtracts doubles too
        for kind in kinds:
            scores = found.get('mask_scores', found['scores']) if kind == 'segm' else found['scores']
            for row, (x1, y1, x2, y2) in enumerate(boxes):
                result = dict(
                    image_id=image_id, category_id=metric.cat_ids[found['labels'][row]], score=float(scores[row])
                )
                masks = dict(segmentation=found['masks'][row]) if kind == 'segm' else {}
                results[kind].append(dict(result, bbox=[x1, y1, x2 - x1, y2 - y1], **masks))
    files = {image_id: file for image_id, file, _ in hook.kept}
    report, drawings = detection_report(
        metric._coco_api, results, files, metric.cat_ids, metric.proposal_nums, metric.iou_thrs, _track
    )
    drawn = _track([(kind, one) for kind, some in drawings.items() for one in some], 'drawing')
    thumbnails: dict[str, list[str]] = {kind: [] for kind in drawings}
    for kind, drawing in drawn:
        thumbnails[kind].append(draw(drawing, read_picture))
    return report, thumbnails


def _of_pixels(runner: Runner, hook: _Predictions) -> Part:
    report, pixels = hook.pixels.report(), hook.pixels
    palette = runner.test_dataloader.dataset.metainfo.get('palette') or distinct_colours(len(pixels.classes))
    worst = zip(report['pictures'], _track(pixels.worst, 'drawing'))
    return report, dict(
        pictures=[
            draw_labels(read_picture(row['file']), label, predicted, palette, pixels.ignored)
            for row, (_, _, label, predicted) in worst
        ]
    )


def _of_pictures(runner: Runner, hook: _Predictions) -> Part:
    files, labels, scores = zip(*hook.kept)
    classes = runner.test_dataloader.dataset.metainfo['classes']
    report = classification_report(files, np.array(labels), np.array(scores), classes)
    worst = _track(report['pictures'][:WORST], 'drawing')
    return report, dict(pictures=[draw(Drawing(row['file'], [[]]), read_picture) for row in worst])


def _track(items: Any, description: str) -> Any:
    return track(items, description, console=Console(stderr=True))


def _log(folder: Path) -> list[Any]:
    """Return titles, axes and points of the curves of a training; empty without a log."""
    try:
        log = read_log(folder)
    except (ValueError, OSError):
        return []
    unit = 'epoch' if log.by_epoch else 'iteration'
    parts = (log.losses, log.rates, log.metrics)
    return [*zip(('Losses', 'Learning rate', 'Validation'), ('iteration', 'iteration', unit), parts)]


def _read(run: Union[str, Path]) -> tuple[str, dict[str, Any]]:
    """Return the name of a run and its report, which lies in its folder or in `report` below."""
    paths = [Path(run), Path(run, NAME), Path(run, 'report', NAME)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ValueError(f'--compare takes a folder with {NAME} or report/{NAME} of tools/report.py, got {str(run)!r}')
    report: dict[str, Any] = json.loads(path.read_bytes())
    return Path(run).name, report


def _compared(report: Mapping[str, Any], name: str, other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the main metric of another run, by class, and the differences of its config."""
    if other.get('task') != report['task']:
        raise ValueError(f'--compare takes reports of {report["task"]}, got {name} of {other.get("task")}')
    configs = [
        {key: value for key, value in one['config'].items() if key not in NOT_COMPARED} for one in (other, report)
    ]
    return dict(name=name, settings=summarize(*map(Config, configs)), values=main_metric(other))
