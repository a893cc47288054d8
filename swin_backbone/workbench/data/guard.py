"""Handling of wrong data in a run: an error with the file, or a skipped and counted picture."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, METRICS, DefaultScope
from mmengine.runner import Runner

from ...openmmlab.errors import DataError, sentence_of
from ..configs.paths import annotation_file, datasets_of, metrics_of, require_data, require_file
from .annotations import SHORT_POLYGON, class_of, form_of, mask_fault, require_annotations, require_classes, uses_masks
from .check_labels import LabelRule, has_8_bits, read_label
from .left_out import count_left_out
from .media import depth_note, picture_size, read_picture, require_whole

SECONDS = 5  # for the annotations of a data set, before a training
NOTHING_LEFT = 'need at least one array to concatenate'  # mmengine's message for an empty data set


def facts_of(dataset: Any, with_masks: bool, is_training: bool) -> Iterator[str]:
    """Yield sentences on a built data set: objects that no loss sees, and 16 bits of which the upper 8 are used."""
    for base in base_datasets(dataset):
        for sentence in count_left_out(base, with_masks, is_training, SECONDS)[1].sentences():
            yield f'{base.ann_file} has {sentence}'
        if note := depth_note_of(base, base.get_data_info(0)) if len(base) else '':
            yield note


def build_dataset(cfg: Config, phase: str, skip_unreadable: bool = False) -> Any:
    """Return the data set of a config for 'train', 'val' or 'test'. Its errors name the file.

    Raises:
        DataError: if it cannot be built.
    """
    dataset = cfg[f'{phase}_dataloader'].dataset
    check_datasets(dataset, uses_masks(cfg), beyond=())  # a wrong mask is an error of its picture alone
    try:
        built = DATASETS.build(dataset)
        built.full_init()
    except Exception as error:
        raise build_error(dataset, error) from error
    guard_dataset(built, cfg, phase == 'train', skip_unreadable, has_checked_masks=False)
    return built


def count_pictures(cfg: Config) -> int:
    """Return the number of pictures of an epoch of training, after repetition and filters. Building may change `cfg`.

    Raises:
        ValueError: if the data is missing, with the key.
        DataError: if the data set cannot be built.
    """
    require_data(cfg, ('train',))
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        return len(build_dataset(cfg, 'train'))


def check_datasets(dataset: Any, with_masks: bool, beyond: Sequence[str] = ('masks',)) -> list[str]:
    """Check the annotation files of a config's data sets before mmdet and pycocotools read them.

    Args:
        with_masks, beyond: see `require_annotations`.

    Returns:
        Warnings, a sentence each.

    Raises:
        DataError: with the wrong annotations.
    """
    warnings = []
    for _, base in datasets_of(dataset, 'dataset'):
        path, form = annotation_file(base), form_of(class_of(base))
        if path and form:
            annotations = require_annotations(path, form, with_masks, beyond)
            require_classes(base, with_masks)
            warnings += [f'{path} has {sentence}' for sentence in annotations.warnings.sentences()]
    return warnings


def check_evaluator(evaluator: Any, with_masks: bool) -> None:
    """Check the annotation files of a config's metrics before pycocotools reads them. Raises: see `check_datasets`."""
    for _, metric in metrics_of(evaluator, 'evaluator'):
        path, form = annotation_file(metric), form_of(class_of(metric, METRICS))
        if path and form:
            require_annotations(path, form, with_masks, ('masks', 'in_evaluation'))


def guard_dataset(
    dataset: Any, cfg: Config, is_training: bool, skip_unreadable: bool, has_checked_masks: bool = True
) -> None:
    """Make a data set name wrong pictures and labels in its errors, in place.

    Args:
        skip_unreadable: leave out pictures that cannot be read, or have unreadable labels. Training draws another
            picture. Pictures for validation and test are all read once before.
        has_checked_masks: the masks in annotation files of FORM_OF are checked for the annotated sizes of pictures: see
            `check_datasets`.
    """
    for base in base_datasets(dataset):
        if skip_unreadable and not is_training:
            _leave_out_unreadable(base)
        are_masks_checked = has_checked_masks and bool(form_of(type(base))) and not getattr(base, 'backend_args', None)
        base.guard = GuardedPipeline(base, cfg, is_training and skip_unreadable, are_masks_checked)
        base.guard.put_on(base)


def base_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """Yield the data sets inside wrappers that repeat, join, mix or cut them."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    single = [getattr(dataset, name) for name in ('dataset', '_dataset') if hasattr(dataset, name)]
    for inner in getattr(dataset, 'datasets', single):
        yield from base_datasets(inner)


class GuardedPipeline:
    """The pipeline of a data set with checks, which raises DataError for wrong data.

    With `skip_unreadable`, an unreadable picture or label gives None.
    `skipped` has a flag for each picture, in memory shared by worker processes.
    """

    def __init__(self, dataset: BaseDataset, cfg: Config, skip_unreadable: bool, are_masks_checked: bool):
        self.is_local = not getattr(dataset, 'backend_args', None)
        self.rule = label_rule(cfg)
        self.skip_unreadable, self.are_masks_checked = skip_unreadable, are_masks_checked
        self.skipped = torch.zeros(len(dataset), dtype=torch.uint8).share_memory_()

    def put_on(self, dataset: BaseDataset) -> None:
        """Take the place of a data set's pipeline, with its transforms."""
        if dataset.pipeline is not self:
            self.transforms, dataset.pipeline = dataset.pipeline.transforms, self
            self.loads_masks = any(getattr(transform, 'with_mask', False) for transform in self.transforms)

    def __call__(self, item: dict[str, Any]) -> Optional[dict[str, Any]]:
        source = dict(item)  # transforms change it
        try:
            if self.is_local and source.get('img_path'):
                require_whole(Path(source['img_path']))
            if self.is_local and source.get('seg_map_path'):
                require_file(source['seg_map_path'])
            return self._transform(item)
        except DataError:
            raise
        except Exception as error:
            reason = unreadable(source) if self.is_local else None
            if reason and self.skip_unreadable:
                self._skip(source, reason)
                return None
            hint = '; --skip-unreadable goes on without such pictures' if reason else ''
            raise DataError((reason or f'{_name(source)}: {sentence_of(error)}') + hint) from error

    def _transform(self, item: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
        size: Optional[tuple[int, int]] = None
        has_labels = False
        for transform in self.transforms:
            item = transform(item)
            if item is None:
                return None
            if size is None and 'ori_shape' in item:
                size = tuple(item['ori_shape'][:2])
                self._check_masks(item, size)
            if self.rule and size and not has_labels and 'gt_seg_map' in item:
                has_labels = True
                if item['gt_seg_map'].ndim < 2 and item['gt_seg_map'].size == math.prod(size):
                    item['gt_seg_map'] = item['gt_seg_map'].reshape(size)  # mmseg removes axes of a single pixel
                self._check_labels(item, self.rule, size)
        return item

    def _check_masks(self, item: dict[str, Any], size: tuple[int, int]) -> None:
        """Raise DataError if pycocotools cannot take the mask of an object. mmdet leaves short polygons out."""
        if not self.loads_masks or (self.are_masks_checked and size == (item.get('height'), item.get('width'))):
            return
        for index, instance in enumerate(item.get('instances', ())):
            fault = mask_fault(instance.get('mask'), size)
            if fault and fault[0] != SHORT_POLYGON:
                raise DataError(f'{_name(item)}: {fault[0]}: number {index} of the picture {fault[1]}')

    def _check_labels(self, item: dict[str, Any], rule: LabelRule, size: tuple[int, int]) -> None:
        labels, path = item['gt_seg_map'], item.get('seg_map_path')
        forbidden = LabelRule(rule.num_classes, rule.ignore_index).forbidden_values()  # of what is loaded and mapped
        is_wrong = labels.shape != size or bool(cv2.countNonZero(cv2.LUT(labels.astype(np.uint8), forbidden)))
        if self.is_local and path and (is_wrong or not has_8_bits(path)):
            read_label(Path(path), rule.of(item), size)
        if is_wrong:
            raise DataError(f'{path or _name(item)}: its labels are {labels.shape}, its picture {size}; {rule}')

    def _skip(self, item: dict[str, Any], reason: str) -> None:
        index = item.get('sample_idx', 0)
        if not self.skipped[index]:
            self.skipped[index] = 1
            MMLogger.get_current_instance().warning(f'skipped: {reason}')
            if self.skipped.all():
                raise DataError(f'none of {len(self.skipped)} pictures can be trained on, as: {reason}')


class GuardHook(Hook):
    """Keep the guards after another hook has set a pipeline, and log the number of skipped pictures of all processes.

    mmdet's PipelineSwitchHook and mmpretrain's SwitchRecipeHook set pipelines.
    """

    priority = 'LOWEST'

    def before_train_epoch(self, runner: Runner) -> None:
        for base in base_datasets(runner.train_dataloader.dataset):
            if hasattr(base, 'guard'):
                base.guard.put_on(base)

    def after_train_epoch(self, runner: Runner) -> None:
        skipped = 0
        for base in base_datasets(runner.train_dataloader.dataset):
            if hasattr(base, 'guard'):
                flags = base.guard.skipped.clone()
                all_reduce(flags, 'max')
                skipped += int(flags.sum())
        if skipped:
            runner.logger.warning(f'{skipped} pictures were skipped')


def label_rule(cfg: Config) -> Optional[LabelRule]:
    """Return the allowed values of loaded labels by the head of a segmentor; None for another model."""
    head = cfg.get('model', {}).get('decode_head')
    head = head[-1] if isinstance(head, (list, tuple)) else head
    return LabelRule(head['num_classes'], head.get('ignore_index', 255)) if head and 'num_classes' in head else None


def build_error(dataset: Any, error: Exception) -> DataError:
    """Return the error of a data set that could not be built, with the wrong file if there is one."""
    if isinstance(error, DataError):
        return error
    if NOTHING_LEFT in str(error):
        base = next(base for _, base in datasets_of(dataset, 'dataset'))
        where = annotation_file(base) or Path(
            base.get('data_root') or '', base.get('data_prefix', {}).get('img_path', '')
        )
        setting = 'filter_cfg' if form_of(class_of(base)) else 'img_suffix'
        return DataError(f'no picture of {where} is left with {setting}={base.get(setting)!r}')
    return DataError(f'the data set cannot be built: {sentence_of(error)}')


def unreadable(item: dict[str, Any]) -> Optional[str]:
    """Return why the picture or label of an item cannot be read; None if both can."""
    try:
        if item.get('img_path'):
            read_picture(Path(item['img_path']))
        if item.get('seg_map_path'):
            require_whole(Path(item['seg_map_path']))
            picture_size(Path(item['seg_map_path']))
    except FileNotFoundError as error:
        return f'{error.filename} is not there'
    except OSError as error:
        return str(error)
    return None


def depth_note_of(dataset: BaseDataset, item: dict[str, Any]) -> str:
    """Return a sentence on a picture of 16 bits a channel that a data set loads with 8; '' for another."""
    loads_8_bits = any(
        getattr(step, 'color_type', '') == 'color' and getattr(step, 'imdecode_backend', '') == 'cv2'
        for step in dataset.pipeline.transforms
    )
    path = Path(item.get('img_path') or '')
    note = depth_note(path) if loads_8_bits and path.is_file() else ''
    return f'{path} has {note}' if note else ''


def _leave_out_unreadable(dataset: BaseDataset) -> None:
    reasons = [unreadable(dataset.get_data_info(index)) for index in range(len(dataset))]
    readable = [index for index, reason in enumerate(reasons) if reason is None]
    if not readable:
        raise DataError(f'none of {len(dataset)} pictures can be tested on, as: {reasons[0]}')
    if len(readable) < len(dataset):
        logger = MMLogger.get_current_instance()
        for reason in filter(None, reasons):
            logger.warning(f'skipped: {reason}')
        logger.warning(f'{len(dataset) - len(readable)} of {len(dataset)} pictures are left out of the evaluation')
        dataset.get_subset_(readable)


def _name(item: dict[str, Any]) -> str:
    return str(item.get('img_path') or f'picture {item.get("sample_idx")} of the data set')
