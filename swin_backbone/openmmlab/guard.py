"""What a run does about data that is wrong: name the file in one sentence, or skip it and count."""

from collections import Counter
from collections.abc import Iterator
from functools import wraps
from itertools import islice
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
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from .batches import is_placed
from .check_coco import compare_classes, read_coco, reads_coco
from .check_labels import LabelRule, has_8_bits, read_label
from .errors import DataError
from .media import picture_size, read_picture, require_whole
from .places import datasets_of

NOTHING_LEFT = 'need at least one array to concatenate'  # how mmengine says that a data set is empty


def guard_runner(runner: Runner, skip_unreadable: bool = False) -> None:
    """Have a runner name the data that it cannot train or test on, and count in the log what it skips.

    Args:
        skip_unreadable: leave out pictures that cannot be read, or whose labels cannot. In training another picture
            takes the place of one; those of validation and test are all read once before.
    """
    build = runner.build_dataloader

    @wraps(build)
    def build_guarded(dataloader: Any, *args: Any, **kwargs: Any) -> DataLoader:
        try:
            loader = build(dataloader, *args, **kwargs)
        except Exception as error:
            raise build_error(dataloader.get('dataset'), error) from error
        # Not by test_mode, which mmseg's configs do not set
        is_training = dataloader == runner.cfg.get('train_dataloader') or is_placed(dataloader)
        guard_dataset(loader.dataset, runner.cfg, is_training, skip_unreadable)
        return loader

    runner.build_dataloader = build_guarded
    runner.register_hook(CountBadDataHook(label_rule(runner.cfg)))


def build_dataset(cfg: Config, phase: str, skip_unreadable: bool = False) -> Any:
    """The data set of a config for 'train', 'val' or 'test', whose errors name the file.

    Raises:
        DataError: if it cannot be built.
    """
    dataset = cfg[f'{phase}_dataloader'].dataset
    try:
        built = DATASETS.build(dataset)
        built.full_init()
    except Exception as error:
        raise build_error(dataset, error) from error
    guard_dataset(built, cfg, phase == 'train', skip_unreadable)
    return built


def guard_dataset(dataset: Any, cfg: Config, is_training: bool, skip_unreadable: bool) -> None:
    """Have a data set, in place, name the pictures and labels that are wrong.

    Raises:
        DataError: if its classes are no categories of its annotation file.
    """
    for base in base_datasets(dataset):
        if reads_coco(base) and len(base.cat_ids) != len(base.metainfo['classes']):
            names = [category['name'] for category in read_coco(base.ann_file)['categories']]
            compare_classes(base.ann_file, names, base.metainfo['classes'])
        if skip_unreadable and not is_training:
            _leave_out_unreadable(base)
        base.pipeline = GuardedPipeline(base, label_rule(cfg), is_training, skip_unreadable)


def base_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """The data sets inside of those that repeat, join, mix or, as mmengine with num_batch_per_epoch, cut others."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    for inner in getattr(dataset, 'datasets', None) or [
        getattr(dataset, name, None) for name in ('dataset', '_dataset')
    ]:
        if inner is not None:
            yield from base_datasets(inner)


class GuardedPipeline:
    """The pipeline of a data set, which raises DataError for what cannot be trained or tested on.

    In training a picture is skipped, by returning None, if a side of it has one pixel, or if `skip_unreadable` and it
    or its label cannot be read. Which ones is in `skipped`, in memory that worker processes share.
    """

    def __init__(self, dataset: BaseDataset, rule: Optional[LabelRule], is_training: bool, skip_unreadable: bool):
        self.transforms = dataset.pipeline.transforms
        self.is_training = is_training
        self.is_local = not getattr(dataset, 'backend_args', None)
        self.rule = rule
        self.skip_unreadable = skip_unreadable and is_training
        self.skipped = torch.zeros(len(dataset), dtype=torch.uint8).share_memory_()

    def __call__(self, item: dict) -> Optional[dict]:
        source = dict(item)  # transforms change it
        try:
            if self.is_local and 'img_path' in source:
                require_whole(Path(source['img_path']))
            return self._transform(item)
        except DataError:
            raise
        except Exception as error:
            reason = unreadable(source) if self.is_local else None
            if reason and self.skip_unreadable:
                self._skip(source, reason)
                return None
            hint = '; --skip-unreadable goes on without such pictures' if reason else ''
            raise DataError((reason or f'{_name(source)}: {type(error).__name__}: {error}') + hint) from error

    def _transform(self, item: Optional[dict]) -> Optional[dict]:
        size: Optional[tuple[int, int]] = None
        has_labels = False
        for transform in self.transforms:
            item = transform(item)
            if item is None:
                return None
            if size is None and 'ori_shape' in item:
                size = item['ori_shape'][:2]
                if self.is_training and min(size) < 2:
                    self._skip(item, f'{_name(item)} has a side of one pixel')
                    return None
            if self.rule and size and not has_labels and 'gt_seg_map' in item:
                has_labels = True
                self._check_labels(item, self.rule, size)
        return item

    def _check_labels(self, item: dict, rule: LabelRule, size: tuple[int, int]) -> None:
        labels, path = item['gt_seg_map'], item.get('seg_map_path')
        forbidden = LabelRule(rule.num_classes, rule.ignore_index).forbidden_values()  # of what is loaded and mapped
        is_wrong = labels.shape != size or bool(cv2.countNonZero(cv2.LUT(labels.astype(np.uint8), forbidden)))
        if self.is_local and path and (is_wrong or not has_8_bits(path)):
            read_label(Path(path), rule.of(item), size)
        if is_wrong:
            raise DataError(f'{path or _name(item)}: its labels are {labels.shape}, its picture {size}; {rule}')

    def _skip(self, item: dict, reason: str) -> None:
        index = item.get('sample_idx', 0)
        if not self.skipped[index]:
            self.skipped[index] = 1
            MMLogger.get_current_instance().warning(f'skipped: {reason}')
            if self.skipped.all():
                raise DataError(f'none of {len(self.skipped)} pictures can be trained on, as: {reason}')


class CountBadDataHook(Hook):
    """Says in the log how many pictures training skipped, and how many were trained on with every pixel ignored."""

    def __init__(self, rule: Optional[LabelRule]):
        self.rule = rule
        self.seen = self.ignored = self.skipped_before = 0

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self.rule is None:
            return
        for sample in data_batch['data_samples']:
            if 'gt_sem_seg' not in sample:
                continue
            ignored = bool((sample.gt_sem_seg.data == self.rule.ignore_index).all())
            self.seen += 1
            self.ignored += ignored
            if ignored and self.ignored == 1:
                runner.logger.warning(
                    f'every pixel of {sample.get("img_path")} that is trained on has the label '
                    f'{self.rule.ignore_index}, which is ignored: its loss is 0'
                )

    def after_train_epoch(self, runner: Runner) -> None:
        if self.ignored:
            runner.logger.warning(f'{self.ignored} of {self.seen} pictures were trained on with every pixel ignored')
        skipped = sum(self._skipped(base) for base in base_datasets(runner.train_dataloader.dataset))
        if skipped > self.skipped_before:
            runner.logger.warning(f'{skipped} pictures were skipped')
        self.skipped_before = skipped

    @staticmethod
    def _skipped(dataset: BaseDataset) -> int:
        """How many pictures of a data set any process skipped."""
        flags = dataset.pipeline.skipped.clone() if isinstance(dataset.pipeline, GuardedPipeline) else torch.zeros(0)
        all_reduce(flags, 'max')
        return int(flags.sum())


def label_rule(cfg: Config) -> Optional[LabelRule]:
    """Which values labels may have once they are loaded, if the model is a segmentor, as its head says."""
    head = cfg.get('model', {}).get('decode_head')
    head = head[-1] if isinstance(head, (list, tuple)) else head
    return LabelRule(head['num_classes'], head.get('ignore_index', 255)) if head and 'num_classes' in head else None


def build_error(dataset: Any, error: Exception) -> DataError:
    """Why a data set could not be built: a sentence about the file that is wrong, if it is one."""
    if isinstance(error, DataError):
        return error
    for _, base in datasets_of(dataset, 'dataset') if isinstance(dataset, dict) else ():
        path = Path(base.get('data_root') or '', base.get('ann_file') or '')
        if base.get('backend_args'):
            continue
        is_coco = reads_coco(base)
        try:
            if is_coco:
                names = [category['name'] for category in read_coco(path)['categories']]
                compare_classes(path, names, base.get('metainfo', {}).get('classes', ()))
        except DataError as better:
            return better
        if NOTHING_LEFT in str(error):
            return _nothing_left(base, path if is_coco else None)
    return DataError(f'the data set cannot be built: {type(error).__name__}: {error}')


def _nothing_left(base: dict, annotations: Optional[Path]) -> DataError:
    if annotations:
        return DataError(
            f'{annotations} has {len(read_coco(annotations)["images"])} images, and none is left with '
            f'filter_cfg={base.get("filter_cfg")}, which leaves out those without objects or smaller than min_size'
        )
    folder = Path(base.get('data_root') or '', (base.get('data_prefix') or {}).get('img_path') or '')
    suffix = base.get('img_suffix', '.jpg')
    suffixes = Counter(path.suffix for path in islice(folder.rglob('*'), 10000) if path.is_file())
    there = ', '.join(f'{count} {name}' for name, count in suffixes.most_common(3)) or 'no files'
    return DataError(
        f'there is no picture {suffix} in {folder}, which has {there}; the suffix is img_suffix '
        'of the data set, or own_data.image_suffix'
    )


def unreadable(item: dict) -> Optional[str]:
    """Why the picture of an item of a data set, or its label, cannot be read; None if they can."""
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


def _name(item: dict) -> str:
    return str(item.get('img_path') or f'picture {item.get("sample_idx")} of the data set')
