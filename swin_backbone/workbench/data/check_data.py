"""A thorough check of the data sets of a config: tools/check_data.py.

Annotation files are read whole; pictures and labels are sampled, within a number and a time.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import METRICS, init_default_scope
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...checks import DataError
from ...openmmlab.config_parts import find_class
from ...openmmlab.errors import Faults, describe_error
from ..configs.data_parts import find_annotation_file, list_dataset_configs, list_metric_configs, require_data
from .annotations import Annotations, find_format, scan_annotation_file
from .dataset_warnings import count_left_out, find_class_warnings
from .datasets import BuiltDatasets
from .guard import GuardedPipeline
from .load_picture import loads_annotations, loads_picture

PHASES = ('train', 'val')
MAX_ROWS = 30  # classes in a table
IGNORED_PIXELS = '(ignored)'  # among the classes of a `DatasetCheck`
COUNTED = ('objects', 'pictures by class')


@dataclass
class DatasetCheck:
    """What the check of a data set has found.

    Args:
        name: name of the phase or, of several data sets, the key of the data set.
        rows: for the table, by their names.
        classes: how many objects, or pixels of the labels looked at, each class has.
        errors: faults that prevent a correct training.
        warnings: unusual data.
    """

    name: str
    rows: dict[str, str] = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)
    errors: Faults = field(default_factory=Faults)
    warnings: Faults = field(default_factory=Faults)

    def sentences(self, faults: Faults) -> list[str]:
        """Return the faults, a sentence each."""
        return [f'{self.name}: {sentence}' for sentence in faults.sentences()]


def check_data(datasets: BuiltDatasets, max_files: int = 2000, seconds: float = 60) -> list[DatasetCheck]:
    """Check the data sets of a config, also after an error in another.

    Args:
        max_files: number of opened pictures of a data set; drawn at random from more.
        seconds: time limit for opening the pictures of a data set.

    Raises:
        ValueError: if the config has no data, or a file or folder is missing.
    """
    cfg, with_masks = datasets.cfg, datasets.with_masks
    phases = [phase for phase in PHASES if list_dataset_configs(cfg, phase)]
    if not phases:
        raise ValueError('the config has no data: none of train_dataloader, val_dataloader')
    require_data(cfg, phases)
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    checks = []
    for phase in phases:
        sets = list_dataset_configs(cfg, phase)
        metrics = [metric for _, metric in list_metric_configs(cfg, phase) if find_format(find_class(metric, METRICS))]
        evaluated = set(map(find_annotation_file, metrics))
        for where, dataset in sets:
            check = DatasetCheck(phase if len(sets) == 1 else where)
            checks.append(check)
            path, form = find_annotation_file(dataset), find_format(find_class(dataset))
            annotations = None
            try:
                if path and form:
                    annotations = scan_annotation_file(path, form, with_masks)
                    _add_annotations(check, path, annotations, phase == 'train', path in evaluated)
                if not any(getattr(annotations, name, ()) for name in ('errors', *datasets.fatal_faults)):
                    built = datasets.build(phase, dataset)
                    guard = GuardedPipeline(built, cfg, notes=check.warnings)
                    _check_pictures(check, built, annotations, guard, phase == 'train', max_files, seconds)
            except DataError as error:
                check.errors.add('data that cannot be used', describe_error(error))
    return checks


def print_checks(checks: Sequence[DatasetCheck], console: Console) -> None:
    """Print a table of the data sets, a table of their classes, and the faults."""
    table = Table('', *(check.name for check in checks), title='data sets')
    for name in dict.fromkeys(name for check in checks for name in check.rows):
        table.add_row(name, *(check.rows.get(name, '') for check in checks))
    console.print(table)
    title = next((name for name in COUNTED if any(name in check.rows for check in checks)), 'pixels of labels')
    classes = Table('class', *(check.name for check in checks), title=title)
    names = list(dict.fromkeys(name for check in checks for name in check.classes))
    for name in names[:MAX_ROWS]:
        classes.add_row(escape(str(name)), *(f'{check.classes[name]:,}' for check in checks))
    if len(names) > MAX_ROWS:
        classes.add_row(f'and {len(names) - MAX_ROWS} more')
    if names:
        console.print(classes)
    for check in checks:
        lines = [f'error: {sentence}' for sentence in check.sentences(check.errors)]
        lines += [f'warning: {sentence}' for sentence in check.sentences(check.warnings)]
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _check_pictures(
    check: DatasetCheck,
    built: BaseDataset,
    annotations: Optional[Annotations],
    guard: GuardedPipeline,
    is_trained_on: bool,
    max_files: int,
    seconds: float,
) -> None:
    num_left, left_out = count_left_out(built, annotations, is_trained_on, seconds)
    check.rows['pictures'] = f'{len(built):,}'
    check.warnings.update(left_out)
    if is_trained_on and 'objects' in check.rows:
        check.rows['objects trained on'] = f'{num_left:,}'
    classes = built.metainfo.get('classes', ())
    rule = guard.rule
    num_opened = 0
    sizes: list[tuple[int, int]] = []
    guard.set_transforms(
        [step for step in built.pipeline.transforms if loads_picture(step) or (rule and loads_annotations(step))]
    )
    max_files = 0 if getattr(built, 'backend_args', None) else max_files  # not on a local disk
    for index in _draw_indices(len(built), max_files, seconds):
        num_opened += 1
        try:
            item = guard(built.get_data_info(index)) or {}
        except DataError as error:
            check.errors.add('pictures or labels that cannot be used', str(error))
            continue
        if 'ori_shape' in item:
            sizes.append(item['ori_shape'][:2])
        if rule and 'gt_seg_map' in item:
            _count_pixels(check, item, rule.ignore_index, classes)
    if sizes:
        smallest, largest = np.min(sizes, 0), np.max(sizes, 0)
        check.rows['width'], check.rows['height'] = (f'{smallest[i]} to {largest[i]}' for i in (1, 0))
    sampled = '' if num_opened == len(built) else f' of {len(built):,}, drawn at random'
    check.rows['pictures opened'] = f'{num_opened:,}{sampled}'
    is_classified = bool(len(built)) and isinstance(built.get_data_info(0).get('gt_label'), int)
    if is_classified:
        labels = [built.get_data_info(index)['gt_label'] for index in range(len(built))]
        counts = np.bincount(labels, minlength=len(classes))
        check.classes.update(dict(zip(classes, counts.tolist())))
        check.rows['pictures by class'] = f'{min(counts):,} to {max(counts):,}'
    if rule or is_classified:
        check.rows['classes'] = str(len(classes))
    if is_classified or (rule and is_trained_on and num_opened == len(built) and not check.errors):
        by_class = {name: count for name, count in check.classes.items() if name != IGNORED_PIXELS}
        check.warnings.update(find_class_warnings(by_class, 'train' if is_trained_on else 'val'))


def _count_pixels(check: DatasetCheck, item: dict[str, Any], ignored: int, classes: Sequence[str]) -> None:
    pixels = np.bincount(item['gt_seg_map'].ravel(), minlength=max(256, len(classes)))
    counts = Counter({name: int(pixels[i]) for i, name in enumerate(classes) if i != ignored})
    if not sum(counts.values()):
        check.warnings.add('labels with every pixel ignored, whose loss is 0', str(item.get('seg_map_path')))
    counts[IGNORED_PIXELS] = int(pixels[ignored])
    check.classes.update(counts)


def _add_annotations(
    check: DatasetCheck, path: str, annotations: Annotations, is_trained_on: bool, is_evaluated: bool
) -> None:
    check.rows['images annotated'] = f'{len(annotations.pictures):,}'
    check.rows['objects'] = f'{sum(annotations.objects.values()):,}'
    check.rows['classes'] = str(len(annotations.categories))
    check.rows['images without objects'] = f'{annotations.num_empty:,}'
    check.classes.update(annotations.objects)
    check.errors.update(annotations.errors, path)
    check.errors.update(annotations.masks, path)
    if is_evaluated:
        check.errors.update(annotations.in_evaluation, path)
    check.warnings.update(annotations.warnings, path)
    if any(annotations.objects.values()):
        check.warnings.update(find_class_warnings(annotations.objects, 'train' if is_trained_on else 'val'))
    else:
        (check.errors if is_trained_on else check.warnings).add('annotation files without objects', path)


def _draw_indices(size: int, max_files: int, seconds: float) -> Iterator[int]:
    """Yield random indices below `size`: at least one, at most `max_files`, within `seconds`."""
    end = time.monotonic() + seconds
    for count, index in enumerate(random.Random(0).sample(range(size), min(size, max_files))):
        if count and time.monotonic() > end:
            return
        yield index
