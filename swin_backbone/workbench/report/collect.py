"""Test a model, and write the report on its predictions: report.json and index.html."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from pycocotools.cocoeval import Params

from ...openmmlab.data.media import read_picture
from ...openmmlab.errors import kind_of
from ...openmmlab.swap.diff import summarize
from ...outputs import check_outputs, make_folder
from ...pictures.colours import distinct_colours
from ...pictures.curves import read_log
from ...whole_files import write_whole
from .analyse import detection_report
from .confusion import WORST, PixelCounts, classification_report
from .detection import evaluate, track
from .page import main_metric, render
from .thumbnails import Drawing, draw, draw_labels

NAME, PAGE = 'report.json', 'index.html'
TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')
NOT_COMPARED = ('work_dir', 'load_from', 'resume', 'launcher')  # settings that differ between equal trainings
Part = tuple[dict[str, Any], dict[str, list[str]]]  # of a report, and addresses of thumbnails


def add_coco_metric(cfg: Config) -> None:
    """Let a detector be evaluated as COCO too, in place, if its config has another metric alone."""
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    if cfg.get('default_scope') == 'mmdet' and 'CocoMetric' not in map(kind_of, evaluators):
        cfg.test_evaluator = [*evaluators, dict(type='CocoMetric')]
        pack = cfg.test_dataloader.dataset.pipeline[-1]
        pack.meta_keys = (
            *pack.get('meta_keys', ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
            'instances',
        )


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
        test: runs the test of `runner`; of a detector with a CocoMetric.
        compare: reports, or folders with report.json or report/report.json.

    Returns:
        The contents of report.json.

    Raises:
        ValueError: for a model of another toolbox, or a report to compare of another task.
        FileExistsError: see `check_outputs`.
    """
    folder, scope = Path(out_dir), runner.cfg.get('default_scope')
    if scope not in TASKS:
        raise ValueError(f'a report takes a model of {", ".join(TASKS)}, got default_scope={scope!r}')
    others = [_read(Path(run), TASKS[scope]) for run in compare]
    check_outputs(folder / NAME, folder / PAGE, overwrite=overwrite)
    make_folder(folder)
    hook = dict(mmdet=_Objects, mmseg=_Pixels, mmpretrain=_Pictures)[scope](runner)
    runner.register_hook(hook)
    metrics = {name: float(value) for name, value in test().items()}
    report, thumbnails = hook.report(runner)
    report.update(
        title=f'{Path(runner.cfg.filename or "model").stem}: {Path(checkpoint).name}',
        checkpoint=checkpoint,
        tested=len(runner.test_dataloader.dataset),
        metrics=metrics,
        log=_log(Path(checkpoint).parent),
        config=_settings(runner.cfg.to_dict()),
    )
    report['compared'] = [
        dict(
            name=name,
            settings=summarize(*(Config(_settings(one['config'])) for one in (other, report))),
            values=main_metric(other),
        )
        for name, other in others
    ]
    write_whole(folder / NAME, json.dumps(report).encode())
    write_whole(folder / PAGE, render(report, thumbnails, folder).encode())
    return report


def summary(report: Mapping[str, Any]) -> str:
    """Return the main numbers of a report in one line."""
    words = [f'{name} {value:.3f}' for name, value in report['overall'].items() if value is not None]
    if 'best' in report:
        words.append(
            f'best threshold {report["best"]["threshold"]:.2f}, most lost by errors of {report["errors"][0]["kind"]}'
        )
        words.append(f'{sum(map(len, report["labels"].values()))} labels to check')
    return ', '.join(words)


class _Objects(Hook):
    """Keep the predictions that mmdet's CocoMetric gets."""

    def __init__(self, runner: Runner):
        self.metric = next(one for one in runner.test_evaluator.metrics if type(one).__name__ == 'CocoMetric')
        self.files: dict[Any, str] = {}
        self.results: list[dict[str, Any]] = []

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.files.update((sample.img_id, sample.img_path) for sample in outputs)
        self.results += [found for _, found in self.metric.results[-len(outputs) :]]

    def report(self, runner: Runner) -> Part:
        evaluations = []
        for kind in [kind for kind in ('bbox', 'segm') if kind in self.metric.metrics]:
            params = Params(kind)
            params.catIds, params.imgIds = self.metric.cat_ids, self.metric.img_ids
            params.maxDets, params.iouThrs = self.metric.proposal_nums, self.metric.iou_thrs
            results = [one for found in self.results for one in self._as_coco(found, kind)]
            evaluations.append(evaluate(self.metric._coco_api, results, params))
        report, drawings = detection_report(evaluations, self.files)
        drawn = track(drawings.items(), 'drawing')
        return report, {kind: [draw(one, read_picture) for one in some] for kind, some in drawn}

    def _as_coco(self, found: Mapping[str, Any], kind: str) -> Any:
        scores = found.get('mask_scores', found['scores']) if kind == 'segm' else found['scores']
        for row, (x1, y1, x2, y2) in enumerate(found['bboxes'].tolist()):
            box, category = [x1, y1, x2 - x1, y2 - y1], self.metric.cat_ids[found['labels'][row]]
            result = dict(image_id=found['img_id'], category_id=category, bbox=box, score=float(scores[row]))
            yield result if kind == 'bbox' else dict(result, segmentation=found['masks'][row])


class _Pixels(Hook):
    """Count the pixels of a segmentor."""

    def __init__(self, runner: Runner):
        meta = runner.test_dataloader.dataset.metainfo
        self.counts = PixelCounts(meta['classes'])
        self.palette = meta.get('palette') or distinct_colours(len(meta['classes']))

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        for sample in outputs:
            maps = [one.data.squeeze().cpu().numpy() for one in (sample.gt_sem_seg, sample.pred_sem_seg)]
            self.counts.add(sample.img_path, *maps)

    def report(self, runner: Runner) -> Part:
        report, thumbnails = self.counts.report(), []
        for row, (_, _, *maps) in zip(report['pictures'], track(self.counts.worst, 'drawing')):
            thumbnails.append(draw_labels(read_picture(row['file']), *maps, self.palette, self.counts.ignored))
        return report, dict(pictures=thumbnails)


class _Pictures(Hook):
    """Keep labels and scores of a classifier."""

    def __init__(self, runner: Runner):
        self.kept: list[Any] = []

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.kept += [(one.img_path, one.gt_label.item(), one.pred_score.cpu().numpy()) for one in outputs]

    def report(self, runner: Runner) -> Part:
        files, labels, scores = zip(*self.kept)
        classes = runner.test_dataloader.dataset.metainfo['classes']
        report = classification_report(files, np.array(labels), np.array(scores), classes)
        worst = track(report['pictures'][:WORST], 'drawing')
        return report, dict(pictures=[draw(Drawing(row['file'], [[]]), read_picture) for row in worst])


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config for a JSON."""
    settings: dict[str, Any] = json.loads(json.dumps(config, default=repr))
    return {key: value for key, value in settings.items() if key not in NOT_COMPARED}


def _log(folder: Path) -> list[Any]:
    """Return titles, axes and points of the curves of a training; empty without a log."""
    try:
        log = read_log(folder)
    except (ValueError, OSError):
        return []
    unit = 'epoch' if log.by_epoch else 'iteration'
    parts = (log.losses, log.rates, log.metrics)
    return [*zip(('Losses', 'Learning rate', 'Validation'), ('iteration', 'iteration', unit), parts)]


def _read(run: Path, task: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a run, and its report."""
    path = next((path for path in (run, run / NAME, run / 'report' / NAME) if path.is_file()), None)
    if path is None:
        raise ValueError(f'--compare takes a folder with {NAME} or report/{NAME}, got {str(run)!r}')
    report: dict[str, Any] = json.loads(path.read_bytes())
    if report.get('task') != task:
        raise ValueError(f'--compare takes reports of {task}, got {str(path)!r} of {report.get("task")}')
    return run.name, report
