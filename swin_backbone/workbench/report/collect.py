"""Test a model, and write the report on its predictions: report.json and index.html."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Union

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from pycocotools import mask as coco_mask
from pycocotools.cocoeval import Params

from ...openmmlab.errors import kind_of
from ...outputs import check_outputs, make_folder
from ...whole_files import write_whole
from ..pictures.colours import distinct_colours
from ..pictures.curves import read_log
from .analyse import detection_report
from .confusion import IGNORED, WORST, PixelCounts, classification_report
from .detection import evaluate, track
from .page import common_kind, main_metric, render
from .thumbnails import draw, draw_labels

NAME, PAGE = 'report.json', 'index.html'
TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')
META_KEYS = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances')  # for CocoMetric()
NOT_COMPARED = ('work_dir', 'load_from', 'resume', 'launcher')  # settings that equal trainings may differ in
Part = tuple[dict[str, Any], dict[str, list[Any]]]  # of a report, and thumbnails


def add_coco_metric(cfg: Config) -> None:
    """Let a detector be evaluated as COCO too, in place, if its config has another metric alone."""
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    if cfg.get('default_scope') == 'mmdet' and 'CocoMetric' not in map(kind_of, evaluators):
        cfg.test_evaluator = [*evaluators, dict(type='CocoMetric')]
        pack = cfg.test_dataloader.dataset.pipeline[-1]
        pack.meta_keys = tuple({*pack.get('meta_keys', ()), *META_KEYS})


def write_report(
    runner: Runner,
    test: Callable[[], Mapping[str, float]],
    summarize: Callable[[Config, Config], str],
    out_dir: Union[str, Path],
    checkpoint: str,
    compare: Sequence[Union[str, Path]] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Test, and write `out_dir`/report.json and index.html. The curves are those of the checkpoint's folder.

    Args:
        test: runs the test of `runner`, of a detector with a CocoMetric.
        summarize: returns the differences of two configs.
        compare: reports, or folders with report.json or report/report.json.

    Returns:
        The contents of report.json.

    Raises:
        ValueError: for a model of another toolbox, a CocoMetric without boxes and masks, a classifier with several
            classes for a picture, or a report to compare of another task.
        FileExistsError: see `check_outputs`.
    """
    folder, scope = Path(out_dir), runner.cfg.get('default_scope')
    if scope not in TASKS:
        raise ValueError(f'a report takes a model of {", ".join(TASKS)}, got default_scope={scope!r}')
    others = {str(run): _read(Path(run), TASKS[scope]) for run in compare}
    check_outputs(folder / NAME, folder / PAGE, overwrite=overwrite)
    analysis: Iterator[Any] = dict(mmdet=_objects, mmseg=_pixels, mmpretrain=_scores)[scope](runner)
    runner.register_hook(next(analysis))
    make_folder(folder)
    numbers = {name: float(value) for name, value in test().items() if np.ndim(value) == 0}  # no matrices
    metrics = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
    report, thumbnails = next(analysis)
    config = {key: one for key, one in runner.cfg.to_dict().items() if key not in NOT_COMPARED}
    config = json.loads(json.dumps(config, default=repr), parse_constant=str)
    report.update(
        title=f'{Path(runner.cfg.filename or "model").stem}: {Path(checkpoint).name}', checkpoint=checkpoint,
        tested=len(runner.test_dataloader.dataset), metrics=metrics, config=config, log=None,
    )  # fmt: skip
    kind = report['compared_kind'] = common_kind([report, *others.values()])
    report['compared'] = [
        dict(name=run, values=main_metric(one, kind), settings=summarize(Config(one['config']), Config(config)))
        for run, one in others.items()
    ]
    with suppress(ValueError, OSError):  # no log
        report['log'] = read_log(Path(checkpoint).parent)._asdict()
    write_whole(folder / NAME, json.dumps(report, allow_nan=False).encode())
    write_whole(folder / PAGE, render(report, thumbnails, folder).encode())
    return dict(report)


class _Keep(Hook):
    """Keep what `take` makes of the samples of a test."""

    def __init__(self, take: Callable[[Sequence[Any]], list[Any]]):
        self.take = take
        self.kept: list[Any] = []

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.kept += self.take(outputs)


def _objects(runner: Runner) -> Iterator[Union[Hook, Part]]:
    """Yield a hook, and after the test the report of what mmdet's CocoMetric has got."""
    metric = next(one for one in runner.test_evaluator.metrics if type(one).__name__ == 'CocoMetric')
    kinds = [kind for kind in ('bbox', 'segm') if kind in metric.metrics]
    if not kinds:
        raise ValueError(f"a report takes a CocoMetric of 'bbox' or 'segm', got metric={metric.metrics}")
    hook = _Keep(lambda outputs: [*zip([one.img_path for one in outputs], metric.results[-len(outputs) :])])
    yield hook
    evaluations = []
    for kind in kinds:
        results = []
        for _, (_, found) in hook.kept:
            boxes, scores, masks = found['bboxes'].astype(float), found['scores'], {}
            boxes = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])
            if kind == 'segm':
                scores, masks = found.get('mask_scores', scores), found['masks']
                boxes = boxes if boxes.any() else coco_mask.toBbox(masks)  # of a model without boxes
            for row, box in enumerate(boxes.tolist()):
                result = dict(image_id=found['img_id'], bbox=box, score=float(scores[row]))
                mask = dict(segmentation=masks[row]) if masks else {}
                results.append(dict(result, category_id=metric.cat_ids[found['labels'][row]], **mask))
        params = Params(kind)
        params.catIds, params.imgIds = metric.cat_ids, metric.img_ids
        params.maxDets, params.iouThrs = metric.proposal_nums, metric.iou_thrs
        evaluations.append(evaluate(metric._coco_api, results, params))
    yield detection_report(evaluations, {found['img_id']: path for path, (_, found) in hook.kept})


def _pixels(runner: Runner) -> Iterator[Union[Hook, Part]]:
    """Yield a hook, and after the test the report of a segmentor."""
    meta, metrics = runner.test_dataloader.dataset.metainfo, runner.test_evaluator.metrics
    ignored = next((metric.ignore_index for metric in metrics if hasattr(metric, 'ignore_index')), IGNORED)
    counts = PixelCounts(meta['classes'], ignored)
    palette = meta.get('palette') or distinct_colours(len(meta['classes']))

    def count(outputs: Sequence[Any]) -> list[Any]:
        for one in outputs:
            label_HW, predicted_HW = (part.data.squeeze().cpu().numpy() for part in (one.gt_sem_seg, one.pred_sem_seg))
            counts.add(one.img_path, label_HW, predicted_HW)
        return []

    yield _Keep(count)
    report = counts.report()
    worst = zip(report['pictures'], track(counts.worst, 'drawing'))
    drawn = [draw_labels(row['file'], label, predicted, palette, ignored) for row, (_, _, label, predicted) in worst]
    yield report, dict(pictures=drawn)


def _scores(runner: Runner) -> Iterator[Union[Hook, Part]]:
    """Yield a hook, and after the test the report of a classifier."""

    def take(outputs: Sequence[Any]) -> list[Any]:
        several = [one.img_path for one in outputs if one.gt_label.numel() != 1]
        if several:
            raise ValueError(
                f'a report takes a classifier with one class for a picture, got several or none for {several[0]}'
            )
        return [(one.img_path, one.gt_label.item(), one.pred_score.cpu().numpy()) for one in outputs]

    hook = _Keep(take)
    yield hook
    files, labels, scores = zip(*hook.kept)
    classes = runner.test_dataloader.dataset.metainfo['classes']
    report = classification_report(files, np.array(labels), np.array(scores), classes)
    worst = track(report['pictures'][:WORST], 'drawing')
    yield report, dict(pictures=[draw(row['file']) for row in worst])


def _read(run: Path, task: str) -> dict[str, Any]:
    """Return the report of a run."""
    path = next((path for path in (run, run / NAME, run / 'report' / NAME) if path.is_file()), None)
    if path is None:
        raise ValueError(f'--compare takes a folder with {NAME} or report/{NAME}, got {str(run)!r}')
    report: dict[str, Any] = json.loads(path.read_bytes())
    if report.get('task') != task:
        raise ValueError(f'--compare takes reports of {task}, got {str(path)!r} of {report.get("task")}')
    return report
