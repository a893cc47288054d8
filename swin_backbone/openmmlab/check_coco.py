"""Annotations in COCO's format: reading them, and what is wrong with them."""

import inspect
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from mmengine.registry import DATASETS

from ..checkpoints.errors import first_of
from .errors import DataError

CLASSES_SHOWN = 10  # in an error
NEEDED = {
    'images': ('id', 'file_name', 'height', 'width'),
    'annotations': ('id', 'image_id', 'category_id', 'bbox', 'area'),
    'categories': ('id', 'name'),
}


def reads_coco(dataset: Any) -> bool:
    """Whether a data set, or the config of one, reads COCO's format as mmdet's CocoDataset does.

    LVIS and panoptic annotations are other formats.
    """
    cls: Any = dataset['type'] if isinstance(dataset, dict) else type(dataset)
    if isinstance(cls, str):
        with DATASETS.switch_scope_and_registry(None) as scoped:
            cls = scoped.get(cls)
    coco = getattr(sys.modules.get('mmdet.datasets'), 'CocoDataset', None)
    return (
        coco is not None
        and inspect.isclass(cls)
        and issubclass(cls, coco)
        and all(getattr(cls, name) is getattr(coco, name) for name in ('load_data_list', 'parse_data_info'))
    )


def read_coco(path: Union[str, Path]) -> dict[str, list[dict[str, Any]]]:
    """The images, annotations and categories of a file in COCO's format.

    Raises:
        DataError: if it is not there or in another format, if an id of an annotation or its box is none, or if there
            are objects of a category that it does not have.
    """
    try:
        with open(path, encoding='utf-8') as file:
            data = json.load(file)
    except OSError as error:
        raise DataError(f'{path} cannot be read: {error.strerror}') from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise DataError(f'{path} is no JSON: {error}') from error
    for name, keys in NEEDED.items():
        entries = data.get(name) if isinstance(data, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{path} is not in COCO's format: it has no list {name!r} of objects")
        for key in keys:
            without = sum(key not in entry for entry in entries)
            if without:
                raise DataError(f"{path} is not in COCO's format: {without} of its {name} have no {key!r}")
    for annotation in data['annotations']:
        box = annotation['bbox']
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(side, (int, float)) for side in box):
            raise DataError(f'{path}: annotation {annotation["id"]} must have a bbox of four numbers, got {box!r}')
    ids = Counter(annotation['id'] for annotation in data['annotations'])
    if len(ids) < len(data['annotations']):
        number, count = ids.most_common(1)[0]
        raise DataError(f'{path}: ids of annotations must be unique, and {count} have id {number}')
    known = {category['id'] for category in data['categories']}
    unknown = Counter(annotation['category_id'] for annotation in data['annotations'])
    unknown = Counter({number: count for number, count in unknown.items() if number not in known})
    if unknown:
        found = ', '.join(f'{number} ({count} objects)' for number, count in unknown.most_common(5))
        raise DataError(
            f'{path} has objects of unknown category_id {found}; its categories are '
            + first_of([f'{category["id"]} ({category["name"]})' for category in data['categories']], CLASSES_SHOWN)
        )
    return data


def compare_classes(path: Union[str, Path], names: Sequence[str], classes: Sequence[str]) -> None:
    """See that a data set's classes are categories of its annotation file, in its order.

    mmdet counts labels in the file's order, and leaves out the objects of a category that has another name.

    Raises:
        DataError: if not, naming what differs.
    """
    missing = [name for name in classes if name not in names]
    if missing:
        raise DataError(
            f'the classes {first_of(missing, CLASSES_SHOWN)} of metainfo are no categories of {path}, whose categories '
            f'are {first_of(names, CLASSES_SHOWN)}'
        )
    shared = [name for name in names if name in classes]
    if shared != list(classes):
        raise DataError(
            f'the classes of metainfo must be in the order of the categories of {path}, because mmdet numbers them so: '
            f'{first_of(shared, CLASSES_SHOWN)}; got {first_of(classes, CLASSES_SHOWN)}'
        )
