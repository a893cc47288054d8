"""Handling of wrong data in a run: an error with the file, or a skipped and counted picture."""

import math
from collections.abc import Callable, Sequence
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
from mmengine.runner import Runner
from numpy.typing import NDArray

from ...checks import DataError, require_file
from ...openmmlab.errors import Faults, describe_error
from .annotations import find_format
from .check_labels import LabelRule, has_8_bits, read_label
from .datasets import iter_base_datasets
from .load_picture import drops_bits, find_loading_step, find_reader
from .masks import SHORT_POLYGON, find_mask_fault
from .media import OTHER_SIZE, SKIP_HINT, describe_dropped_bits, read_picture, read_picture_size, require_complete

DROPPED_BITS = 'pictures of more bits or bands than are loaded'  # a kind of notes


def guard_dataset(dataset: Any, cfg: Config, is_training: bool, skip_unreadable: bool) -> None:
    """Make a data set name wrong pictures and labels in its errors, in place.

    Args:
        skip_unreadable: leave out pictures that cannot be read, or have unreadable labels. Training draws another
            picture. Pictures for validation and test are all read once before.
    """
    for base in iter_base_datasets(dataset):
        if skip_unreadable and not is_training:
            _leave_out_unreadable(base)
        base.data_guard = GuardedPipeline(base, cfg, is_training and skip_unreadable)
        base.data_guard.install(base)


class GuardedPipeline:
    """The pipeline of a data set with checks, which raises DataError for wrong data.

    With `skip_unreadable`, an unreadable picture or label gives None.
    `skipped` has a flag for each picture, in memory shared by worker processes.

    Args:
        notes: receives all notes. None: the first of each kind is logged.
    """

    def __init__(
        self, dataset: BaseDataset, cfg: Config, skip_unreadable: bool = False, notes: Optional[Faults] = None
    ):
        self.is_local = not getattr(dataset, 'backend_args', None)
        self.rule = find_label_rule(cfg)
        self.skip_unreadable = skip_unreadable
        self.notes = notes
        # `BuiltDatasets` has checked masks at the size that the annotation states; another size needs a check here
        self.are_stated_masks_checked = self.is_local and bool(find_format(type(dataset)))
        self.skipped = torch.zeros(len(dataset), dtype=torch.uint8).share_memory_()
        self.load = find_reader(dataset)
        self.is_dropping_bits = drops_bits(find_loading_step(dataset))
        self.noted = {kind: torch.zeros(1, dtype=torch.uint8).share_memory_() for kind in (DROPPED_BITS, OTHER_SIZE)}

    def install(self, dataset: BaseDataset) -> None:
        """Take the place of a data set's pipeline, with its transforms."""
        if dataset.pipeline is not self:
            self.set_transforms(dataset.pipeline.transforms)
            dataset.pipeline = self

    def set_transforms(self, transforms: Sequence[Any]) -> None:
        self.transforms = transforms
        self.loads_masks = any(getattr(transform, 'with_mask', False) for transform in transforms)

    def __call__(self, item: dict[str, Any]) -> Optional[dict[str, Any]]:
        source = dict(item)  # transforms change it
        try:
            if self.is_local and source.get('img_path'):
                require_complete(Path(source['img_path']))
                if self.is_dropping_bits and not self.noted[DROPPED_BITS]:
                    self._note(DROPPED_BITS, describe_dropped_bits(Path(source['img_path'])))
            if self.is_local and source.get('seg_map_path'):
                require_file(source['seg_map_path'])
            return self._transform(item)
        except DataError:
            raise
        except Exception as error:
            reason = explain_unreadable(source, self.load) if self.is_local else None
            if reason and self.skip_unreadable:
                self._skip(source, reason)
                return None
            hint = SKIP_HINT if reason and self.notes is None else ''  # tools that list faults go on anyway
            raise DataError((reason or f'{_name(source)}: {describe_error(error)}') + hint) from error

    def _note(self, kind: str, note: str) -> None:
        """Add a note to `notes`, or log the first of a kind. '' is none."""
        if note and self.notes is not None:
            self.notes.add(kind, note)
        elif note and not self.noted[kind]:
            self.noted[kind][0] = 1
            MMLogger.get_current_instance().warning(f'{note} (the first such picture)')

    def _transform(self, item: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
        size: Optional[tuple[int, int]] = None
        has_labels = False
        for transform in self.transforms:
            item = transform(item)
            if item is None:
                return None
            if size is None and 'ori_shape' in item:
                size = tuple(item['ori_shape'][:2])
                stated = item.get('height'), item.get('width')
                if None not in stated and size != stated:
                    note = f'{_name(item)} is {size[1]}x{size[0]}, annotated as {stated[1]}x{stated[0]}'
                    self._note(OTHER_SIZE, note)
                if self.loads_masks and not (self.are_stated_masks_checked and size == stated):
                    self._check_masks(item, size)
            if self.rule and size and not has_labels and 'gt_seg_map' in item:
                has_labels = True
                if item['gt_seg_map'].ndim < 2 and item['gt_seg_map'].size == math.prod(size):
                    item['gt_seg_map'] = item['gt_seg_map'].reshape(size)  # mmseg removes axes of a single pixel
                self._check_labels(item, self.rule, size)
        return item

    def _check_masks(self, item: dict[str, Any], size: tuple[int, int]) -> None:
        """Raise DataError if pycocotools cannot take the mask of an object. mmdet leaves short polygons out."""
        if 'segments_info' in item:  # the masks are those of a panoptic PNG
            return
        for index, instance in enumerate(item.get('instances', ())):
            fault = find_mask_fault(instance.get('mask'), size)
            if fault and fault[0] != SHORT_POLYGON:
                raise DataError(f'{_name(item)}: {fault[0]}: number {index} of the picture {fault[1]}')

    def _check_labels(self, item: dict[str, Any], rule: LabelRule, size: tuple[int, int]) -> None:
        labels_HW, path = item['gt_seg_map'], item.get('seg_map_path')
        forbidden = LabelRule(rule.num_classes, rule.ignore_index).find_forbidden_values()  # mapped already
        is_wrong = labels_HW.shape != size or bool(cv2.countNonZero(cv2.LUT(labels_HW.astype(np.uint8), forbidden)))
        if self.is_local and path and (is_wrong or not has_8_bits(path)):
            read_label(Path(path), rule.fit_to_item(item), size)
        if is_wrong:
            raise DataError(f'{path or _name(item)}: its labels are {labels_HW.shape}, its picture {size}; {rule}')

    def _skip(self, item: dict[str, Any], reason: str) -> None:
        index = item.get('sample_idx', 0)
        if not self.skipped[index]:
            self.skipped[index] = 1
            MMLogger.get_current_instance().warning(f'skipped: {reason}')
            if self.skipped.all():
                raise DataError(f'none of {len(self.skipped)} pictures can be trained on, as: {reason}')


class DataGuardHook(Hook):
    """Keep the guards after another hook has set a pipeline, and log the number of skipped pictures of all processes.

    mmdet's PipelineSwitchHook and mmpretrain's SwitchRecipeHook set pipelines.
    """

    priority = 'LOWEST'

    def before_train_epoch(self, runner: Runner) -> None:
        for base in iter_base_datasets(runner.train_dataloader.dataset):
            if hasattr(base, 'data_guard'):
                base.data_guard.install(base)

    def after_train_epoch(self, runner: Runner) -> None:
        skipped = 0
        for base in iter_base_datasets(runner.train_dataloader.dataset):
            if hasattr(base, 'data_guard'):
                flags = base.data_guard.skipped.clone()
                all_reduce(flags, 'max')
                skipped += int(flags.sum())
        if skipped:
            runner.logger.warning(f'{skipped} pictures were skipped')


def find_label_rule(cfg: Config) -> Optional[LabelRule]:
    """Return the allowed values of loaded labels by the head of a segmentor; None for another model."""
    head = cfg.get('model', {}).get('decode_head')
    head = head[-1] if isinstance(head, (list, tuple)) else head
    return LabelRule(head['num_classes'], head.get('ignore_index', 255)) if head and 'num_classes' in head else None


def explain_unreadable(item: dict[str, Any], load: Callable[[Path], NDArray[Any]] = read_picture) -> Optional[str]:
    """Return why the picture of an item, or the header of its label, cannot be read; None if both can."""
    try:
        if item.get('img_path'):
            require_complete(Path(item['img_path']))
            load(Path(item['img_path']))
            if item.get('seg_map_path'):
                require_complete(Path(item['seg_map_path']))
                read_picture_size(Path(item['seg_map_path']))
    except FileNotFoundError as error:
        return f'{error.filename} is not there'
    except OSError as error:
        return str(error)
    return None


def _leave_out_unreadable(dataset: BaseDataset) -> None:
    load = find_reader(dataset)
    reasons = [explain_unreadable(dataset.get_data_info(index), load) for index in range(len(dataset))]
    readable = [index for index, reason in enumerate(reasons) if reason is None]
    if not readable:
        raise DataError(f'none of {len(dataset)} pictures can be tested on, as: {reasons[0]}')
    if len(readable) < len(dataset):
        logger = MMLogger.get_current_instance()
        for reason in filter(None, reasons):
            logger.warning(f'skipped: {reason}')
        logger.warning(
            f'{len(dataset) - len(readable)} of {len(dataset)} pictures are not tested: a metric that reads an '
            "annotation file itself, as mmdet's CocoMetric, counts their objects as missed"
        )
        dataset.get_subset_(readable)


def _name(item: dict[str, Any]) -> str:
    return str(item.get('img_path') or f'picture {item.get("sample_idx")} of the data set')
