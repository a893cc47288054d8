"""Test a model, keep its results as files, and write the report on these."""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Union

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ...openmmlab.config_parts import summarize, type_name
from ...outputs import REPORT_JSON, check_outputs, claim_folder, lock_folder, make_folder
from ...whole_files import write_whole
from ..configs.data_parts import describe_tested_data, list_dataset_configs, list_metric_configs
from ..data.datasets import iter_base_datasets
from ..data.load_picture import find_reader
from ..data.media import read_picture
from ..data.prepare.folder import CLASS_FILES
from ..pictures.colours import PALETTE_SIZE, encode_labels, make_palette
from ..pictures.curves import read_log
from ..runner.build import run_loop
from .files import encode_csv, encode_objects
from .write import INDEX_HTML, read_reports, write_report

TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')
META_KEYS = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances')  # for CocoMetric()
NOT_COMPARED = ('work_dir', 'load_from', 'resume', 'launcher')  # settings that equal trainings may differ in
LABELS, RESULTS = 'labels', 'results'  # names of files and folders


def add_coco_metric(cfg: Config) -> None:
    """Add a CocoMetric to the test of a detector whose config has none, in place."""
    metrics = [metric for _, metric in list_metric_configs(cfg, 'test')]
    if cfg.get('default_scope') == 'mmdet' and 'CocoMetric' not in map(type_name, metrics):
        cfg.test_evaluator = [*metrics, dict(type='CocoMetric')]
        for _, dataset in list_dataset_configs(cfg, 'test'):
            pack = dataset['pipeline'][-1]
            pack.meta_keys = tuple(dict.fromkeys([*pack.get('meta_keys', ()), *META_KEYS]))


def report_on_test(
    runner: Runner,
    out_dir: Union[str, Path],
    checkpoint: str,
    compare: Sequence[Union[str, Path]] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Test, write labels and results as files to `out_dir`, and report on these; see `write_report`.

    The curves are read from the checkpoint's folder.

    Args:
        runner: runner of a test; of a detector with a CocoMetric.

    Raises:
        ValueError: for a model of another toolbox, a CocoMetric without boxes and masks, a classifier with several
            classes for a picture, or a report to compare of another task.
        FileExistsError: see `check_outputs` and `claim_folder`.
        FolderInUse: if another process reports there.
    """
    folder = Path(out_dir)
    scope = runner.cfg.get('default_scope')
    if scope not in TASKS:
        raise ValueError(f'a report takes a model of {", ".join(TASKS)}, got default_scope={scope!r}')
    others = read_reports(compare, TASKS[scope])  # before the test
    check_outputs(folder / REPORT_JSON, folder / INDEX_HTML, overwrite=overwrite)
    make_folder(folder)
    with lock_folder(folder, 'reports in'):
        recorder_of: Any = dict(mmdet=_ObjectRecorder, mmseg=_LabelMapRecorder, mmpretrain=_ScoreRecorder)
        recorder = recorder_of[scope](runner, folder, overwrite)
        runner.register_hook(recorder)
        metrics = run_loop(runner, 'test')
        numbers = {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}  # no confusion matrix
        labels, results, pictures = recorder.write()
        config = {key: value for key, value in runner.cfg.to_dict().items() if key not in NOT_COMPARED}
        about = dict(
            title=f'{Path(runner.cfg.filename or "model").stem}: {Path(checkpoint).name}',
            checkpoint=checkpoint,
            tested=len(runner.test_dataloader.dataset),
            tested_on=describe_tested_data(runner.cfg),
            metrics={name: value if np.isfinite(value) else None for name, value in numbers.items()},
            config=json.loads(json.dumps(config, default=repr), parse_constant=str),
        )
        with suppress(ValueError, OSError):  # no log
            about['log'] = read_log(Path(checkpoint).parent)._asdict()
        base = next(iter_base_datasets(runner.test_dataloader.dataset), None)
        read = read_picture if base is None else find_reader(base)
        return write_report(
            folder, labels, results, pictures, classes=recorder.classes,
            others=others, overwrite=True, about=about, read=read,
            summarize=lambda before, after: summarize(Config(before), Config(after)),
        )  # fmt: skip


# `write` of a recorder returns labels, results and the folder of the pictures. `classes` are names of label PNGs.


class _ObjectRecorder(Hook):
    """Keeps the predictions that mmdet's CocoMetric receives."""

    classes = None  # the labels have them

    def __init__(self, runner: Runner, folder: Path, overwrite: bool):
        self.metric = next(metric for metric in runner.test_evaluator.metrics if type(metric).__name__ == 'CocoMetric')
        self.kinds = [kind for kind in ('bbox', 'segm') if kind in self.metric.metrics]
        if not self.kinds:
            raise ValueError(f"a report takes a CocoMetric of 'bbox' or 'segm', got metric={self.metric.metrics}")
        self.labels, self.results = folder / f'{LABELS}.json', folder / f'{RESULTS}.json'
        check_outputs(self.labels, self.results, overwrite=overwrite)
        self.files: dict[Any, str] = {}
        self.predictions: list[dict[str, Any]] = []

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """See `Hook`."""
        for sample, (_, prediction) in zip(outputs, self.metric.results[-len(outputs) :]):
            self.files[prediction['img_id']] = sample.img_path
            self.predictions.append(prediction)

    def write(self) -> tuple[Path, Path, Path]:
        metric = self.metric
        results = []
        for prediction in self.predictions:
            boxes = prediction['bboxes'].astype(float)
            boxes = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]).tolist()
            scores, labels = prediction['scores'].tolist(), prediction['labels'].tolist()
            for row, (box, score, label) in enumerate(zip(boxes, scores, labels)):
                result = dict(image_id=prediction['img_id'], category_id=metric.cat_ids[label], score=score)
                if 'bbox' in self.kinds:
                    result['bbox'] = box
                if 'segm' in self.kinds:
                    mask = prediction['masks'][row]
                    result['segmentation'] = dict(size=mask['size'], counts=mask['counts'].decode())
                    if 'mask_scores' in prediction:
                        result['mask_score'] = float(prediction['mask_scores'][row])
                results.append(result)
        truth = metric._coco_api
        pictures = _find_common_folder(self.files.values())
        coco = dict(
            images=truth.loadImgs(metric.img_ids),
            annotations=truth.loadAnns(truth.getAnnIds(metric.img_ids, metric.cat_ids)),
            categories=truth.loadCats(sorted(metric.cat_ids)),
        )
        names = {image_id: _name_below(pictures, file) for image_id, file in self.files.items()}
        write_whole(self.labels, encode_objects(coco, names))
        write_whole(self.results, json.dumps(results).encode())
        return self.labels, self.results, pictures


class _LabelMapRecorder(Hook):
    """Writes the labels and predictions of a segmentor as PNGs, during the test."""

    def __init__(self, runner: Runner, folder: Path, overwrite: bool):
        metrics = runner.test_evaluator.metrics
        self.ignored = next((metric.ignore_index for metric in metrics if hasattr(metric, 'ignore_index')), 255)
        dataset = runner.test_dataloader.dataset
        self.classes = list(dataset.metainfo['classes'])
        palette = dataset.metainfo.get('palette') or make_palette(len(self.classes))
        self.meta = dict(classes=[*self.classes, 'ignored'], palette=palette)
        self.ignored_value = 255 if len(self.classes) < PALETTE_SIZE else 65535
        self.pictures = _find_common_folder(dataset.get_data_info(index)['img_path'] for index in range(len(dataset)))
        self.labels, self.results = folder / LABELS, folder / RESULTS
        for target in (self.labels, self.results):
            claim_folder(target, overwrite)
            for path in target.rglob('*.png'):
                path.unlink()  # of the test before, which may have had other pictures
        lines = (f'{value} {name}\n' for value, name in enumerate(self.classes))  # a name may begin with a number
        write_whole(self.labels / CLASS_FILES[0], ''.join(lines).encode())

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """See `Hook`."""
        for sample in outputs:
            label_HW = sample.gt_sem_seg.data.squeeze().cpu().numpy()
            label_HW = np.where(label_HW == self.ignored, self.ignored_value, label_HW)
            predicted_HW = sample.pred_sem_seg.data.squeeze().cpu().numpy()
            name = f'{_name_below(self.pictures, sample.img_path)}.png'
            for folder, values_HW in ((self.labels, label_HW), (self.results, predicted_HW)):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encode_labels(values_HW, self.meta))  # not write_whole, which waits for the disk

    def write(self) -> tuple[Path, Path, Path]:
        return self.labels, self.results, self.pictures


class _ScoreRecorder(Hook):
    """Keeps the scores of a classifier."""

    def __init__(self, runner: Runner, folder: Path, overwrite: bool):
        self.classes = list(runner.test_dataloader.dataset.metainfo['classes'])
        self.labels, self.results = folder / f'{LABELS}.csv', folder / f'{RESULTS}.csv'
        check_outputs(self.labels, self.results, overwrite=overwrite)
        self.rows: list[tuple[str, int, list[float]]] = []

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """See `Hook`."""
        several = [sample.img_path for sample in outputs if sample.gt_label.numel() != 1]
        if several:
            raise ValueError(
                f'a report takes a classifier with one class for a picture, got several or none for {several[0]}'
            )
        self.rows += [(sample.img_path, sample.gt_label.item(), sample.pred_score.tolist()) for sample in outputs]

    def write(self) -> tuple[Path, Path, Path]:
        pictures = _find_common_folder(file for file, _, _ in self.rows)
        names = [_name_below(pictures, file) for file, _, _ in self.rows]
        labels = [(name, self.classes[label]) for name, (_, label, _) in zip(names, self.rows)]
        scores = [(name, *scores) for name, (_, _, scores) in zip(names, self.rows)]
        write_whole(self.labels, encode_csv([('file', 'class'), *labels]))
        write_whole(self.results, encode_csv([('file', *self.classes), *scores]))
        return self.labels, self.results, pictures


def _find_common_folder(files: Iterable[str]) -> Path:
    """Return the deepest folder that has all files."""
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    try:
        return Path(os.path.commonpath(folders))
    except ValueError:  # no files, or drives of Windows
        return Path()


def _name_below(folder: Path, file: str) -> str:
    """Return the path of a file below a folder; the whole path of a file elsewhere."""
    path = Path(os.path.abspath(file))
    return path.relative_to(folder).as_posix() if folder in path.parents else path.as_posix()
