"""Looking through the data sets of a config before anything is trained on them.

Annotation files are read whole; pictures and labels are a sample, of so many and for so long.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .check_coco import compare_classes, read_coco, reads_coco
from .check_labels import LabelRule, read_label
from .errors import DataError
from .guard import build_error, label_rule, unreadable
from .launchers import rank, require_launcher
from .media import picture_size
from .places import datasets_of, require_data

EXAMPLES = 3  # of each thing that is wrong
CLASSES_SHOWN = 30


@dataclass
class Report:
    """What was found in one data set.

    Args:
        name: of the phase, with the key of the data set if it has several.
        rows: for the table, by their names.
        classes: how many objects, or pixels of the labels looked at, each class has.
        errors: what cannot be trained on, or would be trained on wrongly, with examples, and how many.
        warnings: the same for what may be intended.
        counts: how many there are of each error and warning.
    """

    name: str
    rows: dict[str, str] = field(default_factory=dict)
    classes: Counter = field(default_factory=Counter)
    errors: dict[str, list[str]] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)

    def add(self, found: dict[str, list[str]], what: str, example: str) -> None:
        """One more of `errors` or `warnings`."""
        self.counts[what] += 1
        examples = found.setdefault(what, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def sentences(self, found: dict[str, list[str]]) -> list[str]:
        """What is wrong, in a sentence each."""
        return [f'{self.name}: {what}: {self.counts[what]}, as {"; ".join(found[what])}' for what in found]


def check_data(
    cfg: Config,
    phases: Sequence[str] = ('train', 'val'),
    max_files: int = 2000,
    seconds: float = 60,
    skip_unreadable: bool = False,
) -> list[Report]:
    """Look through the data sets of a config.

    Args:
        max_files: how many pictures of a data set are opened at most; if it has more, they are drawn at random.
        seconds: after which no more pictures of a data set are opened.
        skip_unreadable: pictures that cannot be read are a warning, not an error.

    Raises:
        ValueError: if files or folders that the config names are not there.
        DataError: if a data set cannot be built, or its annotation file is in another format.
    """
    require_data(cfg, phases)
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    reports = []
    for phase in phases:
        loader = cfg.get(f'{phase}_dataloader')
        sets = list(datasets_of(loader['dataset'], f'{phase}_dataloader.dataset')) if loader else []
        for where, dataset in sets:
            report = Report(phase if len(sets) == 1 else where)
            if reads_coco(dataset):
                _check_annotations(report, dataset, phase == 'train')
            _check_pictures(report, dataset, label_rule(cfg), _Limits(max_files, seconds, skip_unreadable))
            reports.append(report)
    return reports


def check_own_data(cfg: Config, skip_unreadable: bool = False) -> None:
    """Look through `own_data`, if a config has it, in brief: 200 files and 5 seconds a data set. Print what is found.

    Raises:
        DataError: if it cannot be trained on.
    """
    require_launcher(cfg.launcher)
    if 'own_data' not in cfg or rank(cfg.launcher) > 0:
        return
    reports = check_data(cfg, max_files=200, seconds=5, skip_unreadable=skip_unreadable)
    print_reports(reports, Console(stderr=True), with_errors=False)
    errors = [sentence for report in reports for sentence in report.sentences(report.errors)]
    if errors:
        raise DataError('. '.join(errors))


def print_reports(reports: Sequence[Report], console: Console, with_errors: bool = True) -> None:
    """Print a table of the data sets, one of their classes, and what is wrong."""
    table = Table('', *(report.name for report in reports), title='data sets')
    for name in dict.fromkeys(name for report in reports for name in report.rows):
        table.add_row(name, *(report.rows.get(name, '') for report in reports))
    console.print(table)
    counted = 'objects' if any('objects' in report.rows for report in reports) else 'pixels of labels'
    classes = Table('class', *(report.name for report in reports), title=counted)
    names = list(dict.fromkeys(name for report in reports for name in report.classes))
    for name in names[:CLASSES_SHOWN]:
        classes.add_row(escape(str(name)), *(f'{report.classes[name]:,}' for report in reports))
    if len(names) > CLASSES_SHOWN:
        classes.add_row(f'and {len(names) - CLASSES_SHOWN} more')
    if names:
        console.print(classes)
    for report in reports:
        found = [('error', sentence) for sentence in report.sentences(report.errors) if with_errors]
        found += [('warning', sentence) for sentence in report.sentences(report.warnings)]
        for word, sentence in found:
            console.print(f'{word}: {sentence}', markup=False, highlight=False, soft_wrap=True)


class _Limits(NamedTuple):
    max_files: int
    seconds: float
    skip_unreadable: bool


def _check_pictures(report: Report, dataset: dict, rule: Optional[LabelRule], limits: _Limits) -> None:
    try:
        built = DATASETS.build(dict(dataset, pipeline=[]))
        built.full_init()
    except Exception as error:
        raise build_error(dataset, error) from error
    report.rows['pictures'] = f'{len(built):,}'
    classes = built.metainfo.get('classes', ())
    sizes: list[tuple[int, int]] = []
    checked = 0
    max_files = 0 if dataset.get('backend_args') else limits.max_files  # those are not on this machine's disk
    for index in _sample(len(built), max_files, limits.seconds):
        item = built.get_data_info(index)
        checked += 1
        reason = unreadable(item)
        if reason:
            found = report.warnings if limits.skip_unreadable else report.errors
            report.add(found, 'pictures or labels that cannot be read', reason)
            continue
        size = picture_size(Path(item['img_path']))
        sizes.append(size)
        if min(size) < 2:
            report.add(report.warnings, 'pictures with a side of one pixel, which are skipped', str(item['img_path']))
        elif reads_coco(dataset) and size != (item['height'], item['width']):
            report.add(
                report.warnings, 'pictures of another size than their annotations say',
                f'{item["img_path"]} is {size[1]}x{size[0]}, annotated as {item["width"]}x{item["height"]}',
            )  # fmt: skip
        if rule and item.get('seg_map_path'):
            _check_label(report, Path(item['seg_map_path']), rule.of(item), size, classes)
    if sizes:
        least, most = np.min(sizes, 0), np.max(sizes, 0)
        report.rows['width'], report.rows['height'] = (f'{least[i]} to {most[i]}' for i in (1, 0))
    sampled = '' if checked == len(built) else f' of {len(built):,}, drawn at random'
    report.rows['pictures opened'] = f'{checked:,}{sampled}'
    if rule:
        report.rows['classes'] = str(len(classes))


def _check_label(report: Report, path: Path, rule: LabelRule, size: tuple[int, int], classes: Sequence[str]) -> None:
    try:
        values = read_label(path, rule, size)
    except DataError as error:
        report.add(report.errors, 'labels that cannot be trained on', str(error))
        return
    pixels = np.bincount(rule.classes_of_values()[values.ravel()], minlength=256)
    kept = Counter({name: int(pixels[i]) for i, name in enumerate(classes) if i != rule.ignore_index})
    if not sum(kept.values()):
        report.add(report.warnings, 'labels with every pixel ignored, whose loss is 0', str(path))
    kept['(ignored)'] = int(pixels[rule.ignore_index])
    report.classes.update(kept)


def _check_annotations(report: Report, dataset: dict, is_training: bool) -> None:
    path = Path(dataset.get('data_root') or '', dataset['ann_file'])
    data = read_coco(path)
    names = [category['name'] for category in data['categories']]
    compare_classes(path, names, dataset.get('metainfo', {}).get('classes', ()))
    report.rows['images annotated'] = f'{len(data["images"]):,}'
    report.rows['objects'] = f'{len(data["annotations"]):,}'
    report.rows['classes'] = str(len(names))
    by_id = {category['id']: category['name'] for category in data['categories']}
    report.classes.update(dict.fromkeys(names, 0))
    images = {image['id']: image for image in data['images']}
    with_mask = any('Annotations' in step['type'] and step.get('with_mask') for step in dataset.get('pipeline', ()))
    for annotation in data['annotations']:
        report.classes[by_id[annotation['category_id']]] += 1
        _check_object(report, annotation, images.get(annotation['image_id']), with_mask)
    empty = len(images.keys() - {annotation['image_id'] for annotation in data['annotations']})
    report.rows['images without objects'] = f'{empty:,}'
    if not data['annotations']:
        report.add(report.errors if is_training else report.warnings, 'annotation files without objects', str(path))


def _check_object(report: Report, annotation: dict[str, Any], image: Optional[dict], with_mask: bool) -> None:
    name, box = f'annotation {annotation["id"]}', annotation['bbox']
    if with_mask and not annotation.get('segmentation'):
        report.add(report.errors, 'objects without a segmentation, which the model is trained on', name)
    if image is None:
        report.add(report.warnings, 'objects of an image that is not there', name)
        return
    x, y, width, height = box
    if width < 1 or height < 1 or annotation['area'] <= 0:
        report.add(report.warnings, 'objects without area, which are left out', f'{name} has bbox {box}')
    elif x >= image['width'] or y >= image['height'] or x + width <= 0 or y + height <= 0:
        report.add(report.warnings, 'boxes outside their image, which are left out', _beside(name, box, image))
    elif x < -1 or y < -1 or x + width > image['width'] + 1 or y + height > image['height'] + 1:
        report.add(report.warnings, 'boxes that reach out of their image', _beside(name, box, image))


def _beside(name: str, box: list, image: dict) -> str:
    return f'{name} has bbox {box}, its image {image["file_name"]} is {image["width"]}x{image["height"]}'


def _sample(number: int, max_files: int, seconds: float) -> Iterator[int]:
    """Random indices below a number: at most so many, until a time is over, and one at least."""
    end = time.monotonic() + seconds
    for count, index in enumerate(random.Random(0).sample(range(number), min(number, max_files))):
        if count and time.monotonic() > end:
            return
        yield index
