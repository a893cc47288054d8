"""What is unusual in a data set, without reading pictures: annotations, classes without data, and objects that the
losses of a training never see.
"""

import copy
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Optional

import numpy as np
from mmengine.dataset import BaseDataset
from numpy.typing import NDArray

from ...checks import DataError
from ...openmmlab.errors import Faults
from ..configs.data_parts import find_annotation_file
from .annotations import Annotations, find_format, scan_annotation_file
from .datasets import iter_base_datasets
from .load_picture import loads_picture
from .masks import BAD_POLYGON, BAD_RLE, NO_MASK, find_mask_fault
from .seeds import preserve_rng_state

SECONDS = 5  # time for the masks of a data set
MISTYPED_RATIO = 10  # times as many objects as a class that may be mistyped
SIMILAR = 0.7  # similarity of two names, by difflib
FILTERS = ('min_gt_bbox_wh', 'min_gt_mask_area', 'by_mask')  # settings of FilterAnnotations
MAX_PASSES = 200  # pictures that pass the filters of a pipeline: its other transforms take long
CROWD = 'objects with iscrowd=1 (difficult in Pascal VOC), which losses and scores leave out'


def iter_dataset_warnings(dataset: Any, with_masks: bool, is_trained_on: bool) -> Iterator[str]:
    """Yield sentences on a built data set, which may have wrappers: unusual annotations, and see `count_left_out`.

    Args:
        with_masks: see `scan_annotation_file`.

    Raises:
        DataError: if no object is left to train on.
    """
    for base in iter_base_datasets(dataset):
        path = find_annotation_file(dict(ann_file=base.ann_file, backend_args=getattr(base, 'backend_args', None)))
        form = find_format(type(base))
        annotations = scan_annotation_file(path, form, with_masks) if path and form else None
        _, left_out = count_left_out(base, annotations, is_trained_on, SECONDS)
        for faults in (annotations.warnings if annotations else Faults(), left_out):
            for sentence in faults.sentences():
                yield f'{base.ann_file} has {sentence}'


def find_class_warnings(counts: Mapping[str, int], split: str) -> Faults:
    """Return the classes without data and, in a training, rare ones with nearly the name of another.

    Args:
        counts: objects, pictures or pixels of each class.
        split: 'train', 'val' or 'test'.
    """
    faults = Faults()
    for name, count in counts.items():
        letters = re.sub(r'\d', '', name)
        frequent = [
            other
            for other, other_count in counts.items()
            if other_count > MISTYPED_RATIO * count and re.sub(r'\d', '', other) != letters
        ]
        nearest = get_close_matches(name, frequent, 1, SIMILAR) if split == 'train' else []
        if not count and split != 'train':
            faults.add(f'classes without {dict(val="validation").get(split, split)} data, which have no score', name)
        elif not count:
            faults.add('classes without training data', name + (f', nearest {nearest[0]}' if nearest else ''))
        elif nearest:
            kind = 'rare classes, maybe mistyped'
            faults.add(kind, f'{name} ({count}), nearest {nearest[0]} ({counts[nearest[0]]})')
    return faults


def count_left_out(
    dataset: BaseDataset, annotations: Optional[Annotations], is_trained_on: bool, seconds: float
) -> tuple[int, Faults]:
    """Compare a built data set with its annotation file.

    Args:
        dataset: with the transforms that load annotations.
        annotations: content of the file; None without one in a known format.
        is_trained_on: run these transforms, and require an object for the losses.
        seconds: time limit for the transforms, on pictures in random order.

    Returns:
        The number of objects that are left, and the pictures and objects that are left out, by reason.

    Raises:
        DataError: if no object is left to train on.
    """
    pictures = dict(annotations.pictures) if annotations else {}
    transforms = dataset.pipeline.transforms if is_trained_on else []
    loading = [_copy_without_pixels(step) for step in transforms if getattr(step, 'with_bbox', False)]
    filters = [index for index, step in enumerate(transforms) if hasattr(step, 'min_gt_bbox_wh')]
    filtering = copy.deepcopy(list(transforms[: max(filters, default=-1) + 1]))  # some keep pictures of earlier calls
    left_out, by_loading, by_filters = Faults(), Faults(), Faults()
    num_objects = num_left = num_filtered = num_looked = 0
    end = time.monotonic() + seconds
    for index in random.Random(0).sample(range(len(dataset)), len(dataset)):
        item = dataset.get_data_info(index)
        instances = item.get('instances', ())
        default = (item.get('img_path'), (item.get('height'), item.get('width')), len(instances))
        name, size, num_stated = pictures.pop(item.get('img_id'), default)
        if num_stated > len(instances):
            num_lost = num_stated - len(instances)
            left_out.add(f'objects that {type(dataset).__name__} does not load', f'{num_lost} of {name}', num_lost)
        flags = np.array([instance.get('ignore_flag', 0) for instance in instances], bool)
        if flags.any():
            left_out.add(CROWD, f'{flags.sum()} of {name}', int(flags.sum()))
        if not num_looked or time.monotonic() < end:
            num_looked += 1
            for step in loading:
                reason = f'which {type(step).__name__}(poly2mask={step.poly2mask}) leaves out of losses'
                for row in np.flatnonzero(_find_ignored(step, item) & ~flags):
                    kind, _ = find_mask_fault(instances[row].get('mask'), size) or ('objects whose mask is an RLE', '')
                    if kind in (NO_MASK, BAD_POLYGON, BAD_RLE):  # an error, named with its picture
                        continue
                    flags[row] = True
                    by_loading.add(f'{kind}, {reason}', f'number {row} of {name}')
            for reason, num_lost in _run_filters(filtering, item, size) if num_looked <= MAX_PASSES else ():
                by_filters.add(reason, f'{num_lost} of {name}', num_lost)
                num_filtered += num_lost
        num_objects += num_stated
        num_left += len(instances) - int(flags.sum())
    left_out.update(by_loading, f'in {num_looked:,} random pictures' if num_looked < len(dataset) else '')
    num_passed = min(num_looked, MAX_PASSES)
    left_out.update(by_filters, f'in {num_passed} random pictures' if num_passed < len(dataset) else '')
    settings = {'filter_cfg': dataset.filter_cfg, 'indices': dataset._indices}
    cause = ' and '.join(f'{name}={value}' for name, value in settings.items() if value) or type(dataset).__name__
    for name, (height, width), objects in pictures.values():
        left_out.add(f'pictures that {cause} leaves out', f'{name}, {width}x{height} with {objects} objects')
        num_objects += objects
    if is_trained_on and num_objects and not num_left:
        reasons = '. It has '.join(left_out.sentences())
        raise DataError(f'no object of {dataset.ann_file or "the data set"} is left to train on: it has {reasons}')
    return num_left - num_filtered, left_out


def _find_ignored(step: Any, item: dict[str, Any]) -> NDArray[np.bool_]:
    """Return which objects of a picture a transform marks as ignored."""
    if not item.get('instances') or 'segments_info' in item:  # panoptic labels
        return np.zeros(len(item.get('instances', ())), bool)
    try:
        flags: NDArray[np.bool_] = step.transform({**item, 'ori_shape': (1, 1), 'img_shape': (1, 1)})['gt_ignore_flags']
    except Exception:  # a wrong mask is an error, named with its picture
        return np.zeros(len(item['instances']), bool)
    return flags


def _run_filters(transforms: Sequence[Any], item: Any, size: tuple[int, int]) -> Iterator[tuple[str, int]]:
    """Yield what each filter of objects leaves out of a picture, in a pass with blank pixels."""
    item = copy.deepcopy(item)
    with preserve_rng_state(), suppress(Exception):  # a wrong picture is an error, named elsewhere
        for step in transforms:
            if loads_picture(step):
                item.update(img=np.zeros((*size, 3), np.uint8), img_shape=size, ori_shape=size)
                continue
            num_before = _count_seen(item)
            item = step.transform(item)
            num_lost = num_before - (_count_seen(item) if item else 0)
            if hasattr(step, 'min_gt_bbox_wh') and num_lost:
                settings = ', '.join(f'{name}={value}' for name, value in vars(step).items() if name in FILTERS)
                reason = 'leaves out, in a random pass of the pipeline'
                yield f'objects that {type(step).__name__}({settings}) {reason}', num_lost
            if item is None:
                return


def _count_seen(item: dict[str, Any]) -> int:
    """Return the number of objects that the losses see."""
    return int((~np.asarray(item.get('gt_ignore_flags', ()), bool)).sum())


def _copy_without_pixels(step: Any) -> Any:
    """Return a copy of a transform that loads annotations, which draws no mask and reads no labels of pixels."""
    step = copy.copy(step)
    step.with_seg = False
    step._poly2mask = lambda mask, height, width: np.zeros((height, width), np.uint8)
    return step
