"""Annotations in COCO's formats: a check before mmdet and pycocotools read them.

pycocotools reads and writes outside of its memory if a polygon or an RLE is wrong. COCO's evaluation needs more fields
than training. Each annotation file is scanned once in a process. Masks in other formats are checked while a picture is
loaded: see guard.py.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from mmengine.config import Config
from mmengine.fileio import list_from_file

from ...checks import LARGEST_FILE, DataError, check_int, check_number, check_sequence, check_type, list_first
from ...openmmlab.config_parts import find_class, walk
from ...openmmlab.errors import Faults
from ..configs.data_parts import find_annotation_file
from .masks import SHORT_POLYGON, find_mask_fault
from .text_files import decode, read_file

NAMES_SHOWN = 10  # in an error

TABLES = {'images': 'image', 'categories': 'category', 'annotations': 'annotation'}  # lists and their entries
# Format by class of mmdet; subclasses inherit the format. Panoptic annotations are of pictures, and have no ids.
FORMAT_OF = {
    'CocoPanopticDataset': None, 'CocoDataset': 'COCO', 'LVISV05Dataset': 'LVIS',
    'CocoMetric': 'COCO', 'LVISMetric': 'LVIS', 'LVISFixedAPMetric': 'LVIS',
}  # fmt: skip
MAX_FILES = 32  # whose scans are kept
READING = ('load_data_list', 'parse_data_info')  # methods of a data set; a class with its own reads another format


class Annotations(NamedTuple):
    """Content of an annotation file, and its faults.

    Args:
        pictures: name, size (height, width) and number of objects that mmdet loads, by id.
        num_empty: number of pictures without objects.
        num_rles: number of objects, without crowds, whose mask is an RLE.
        categories: names of the categories, in the file's order.
        objects: number of objects of each category.
        errors: entries with an error in mmdet, or a wrong meaning.
        masks: masks with an error in pycocotools.
        in_evaluation: entries that mmdet takes and COCO's evaluation does not.
        warnings: unusual entries.
    """

    pictures: dict[Any, tuple[str, tuple[int, int], int]]
    num_empty: int
    num_rles: int
    categories: tuple[str, ...]
    objects: Counter[str]
    errors: Faults
    masks: Faults
    in_evaluation: Faults
    warnings: Faults


_known: dict[tuple[Any, ...], Annotations] = {}  # scans by file, its state, format and `with_masks`


def find_format(cls: Optional[type]) -> Optional[str]:
    """Return the format, of FORMAT_OF, that a data set or metric reads with pycocotools; None for another class."""
    reading = [getattr(cls, name) for name in READING if hasattr(cls, name)]
    if cls is None or not all(method.__module__.startswith('mmdet.') for method in reading):
        return None
    return next((FORMAT_OF[base.__name__] for base in cls.__mro__ if base.__name__ in FORMAT_OF), None)


def require_classes(dataset: dict[str, Any], with_masks: bool) -> None:
    """Check that the classes of a data set's config are categories of its annotation file, in its order.

    mmdet numbers classes in the file's order, and leaves out the objects of a category with another name. A data set
    that is not of FORMAT_OF, or whose class has an order of its own, is not checked.

    Raises:
        DataError: if not, with the difference.
    """
    cls: Any = find_class(dataset)
    path, form = find_annotation_file(dataset), find_format(cls)
    if path is None or form is None or getattr(cls, READING[0]).__qualname__ != f'CocoDataset.{READING[0]}':
        return
    classes = {**cls.METAINFO, **(dataset.get('metainfo') or {})}['classes']
    classes = list_from_file(classes) if isinstance(classes, str) else list(classes)
    names = scan_annotation_file(path, form, with_masks).categories
    missing = [name for name in classes if name not in names]
    if missing:
        raise DataError(
            f'the classes {list_first(missing, NAMES_SHOWN)} of metainfo are no categories of {path}, whose categories '
            f'are {list_first(names, NAMES_SHOWN)}'
        )
    shared = [name for name in names if name in classes]
    if shared != classes:
        raise DataError(
            f'the classes of metainfo must be in the order of the categories of {path}, because mmdet numbers them so: '
            f'{list_first(shared, NAMES_SHOWN)}; got {list_first(classes, NAMES_SHOWN)}'
        )


def uses_masks(cfg: Config) -> bool:
    """Return whether a config trains or tests on the masks of objects."""
    phases = ('train', 'val', 'test')
    keys = [*(f'{phase}_{name}' for phase in phases for name in ('dataloader', 'evaluator')), 'custom_hooks']
    return any(
        isinstance(part, dict) and (part.get('with_mask') or 'segm' in str(part.get('metric')))
        for key in keys
        for _, part in walk(cfg.get(key))
    )


def scan_annotation_file(
    path: Union[str, Path], form: str, with_masks: bool, content: Optional[dict[str, list[Any]]] = None
) -> Annotations:
    """Return the content of an annotation file and its faults. The result is kept until the file changes.

    Args:
        form: a value of FORMAT_OF.
        with_masks: scan segmentations too.
        content: the content of the file, as `read_annotations` returns it; None reads the file.

    Raises:
        DataError: if the file is no JSON with the lists of the format.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError) as error:
        raise DataError(f'{path} cannot be read: {getattr(error, "strerror", None) or error}') from error
    key = str(Path(path)), state.st_ino, state.st_mtime_ns, state.st_size, form, with_masks
    if key not in _known:
        if len(_known) >= MAX_FILES:
            _known.pop(next(iter(_known)))
        _known[key] = scan_annotations(content or read_annotations(path, form), form, with_masks)
    return _known[key]


def require_annotations(
    path: Union[str, Path], form: str, with_masks: bool, fatal_faults: Sequence[str] = ('masks',)
) -> Annotations:
    """Check that mmdet and pycocotools can take an annotation file: see `scan_annotation_file`.

    Args:
        fatal_faults: fields of Annotations whose faults are errors, besides `errors`.

    Raises:
        DataError: if they cannot, with the annotations.
    """
    annotations = scan_annotation_file(path, form, with_masks)
    sentences = [sentence for name in ('errors', *fatal_faults) for sentence in getattr(annotations, name).sentences()]
    if sentences:
        raise DataError(f'{path} has ' + '. It has '.join(sentences))
    return annotations


def scan_annotations(data: dict[str, list[Any]], form: str, with_masks: bool) -> Annotations:
    """Return the content of an annotation file and its faults: see `read_annotations` and `scan_annotation_file`."""
    errors, masks, in_evaluation, warnings = Faults(), Faults(), Faults(), Faults()
    images = _read_entries('images', data['images'], errors)
    sizes = {image['id']: (image['height'], image['width']) for _, image in images}
    files = {image['id']: str(image.get('file_name', image.get('coco_url'))) for _, image in images}
    for file, count in Counter(files.values()).items():
        if count > 1:
            warnings.add('file names of several images, each with objects of its own', f'{file} of {count}')
    names = {entry['id']: entry['name'] for _, entry in _read_entries('categories', data['categories'], errors)}
    for name, count in Counter(names.values()).items():
        if count > 1:  # for training, see require_classes
            in_evaluation.add('categories of one name', repr(name))
    if not names:
        errors.add('no categories', 'each has an id and a name')
    known_categories = list_first([f'{category_id} ({name})' for category_id, name in names.items()], NAMES_SHOWN)
    objects: Counter[str] = Counter(dict.fromkeys(names.values(), 0))
    filled_ids = set()
    strays = Faults()
    num_loaded: Counter[Any] = Counter()  # objects, by image
    boxes: dict[tuple[Any, ...], Any] = {}
    num_rles = 0
    for name, item in _read_entries('annotations', data['annotations'], errors):
        image_id, category_id = item['image_id'], item['category_id']
        if category_id not in names:
            kind = f'objects of unknown category_id; its categories are {known_categories}'
            errors.add(kind, f'{name} has {category_id}')
            continue
        if image_id not in sizes:
            strays.add("objects whose 'image_id' is that of no image", f'{name} has {image_id!r}')
            continue
        size = sizes[image_id]
        objects[names[category_id]] += 1
        filled_ids.add(image_id)
        is_left_out = _check_box(name, item, size, warnings)
        if item.get('ignore') and not is_left_out:
            warnings.add("objects with 'ignore', which are left out", name)
            is_left_out = True
        if not is_left_out:
            num_loaded[image_id] += 1
            twin = boxes.setdefault((image_id, *item['bbox']), item)
            if twin is not item:
                shared = (
                    'class and box of another' if twin['category_id'] == category_id else 'the box of another class'
                )
                warnings.add(f'objects with {shared}', f'{name} and {twin["id"]}')
        if 'iscrowd' not in item and form == 'COCO':
            in_evaluation.add("objects without 'iscrowd', which COCO's evaluation reads", name)
        if item['id'] == 0:
            warnings.add("objects with the id 0, which COCO's evaluation counts as not found", name)
        fault = find_mask_fault(item.get('segmentation'), size) if with_masks else None
        if fault:
            kind, reason = fault
            (in_evaluation if is_left_out or kind == SHORT_POLYGON else masks).add(kind, f'{name} {reason}')
        elif with_masks and isinstance(item['segmentation'], dict):
            num_rles += not item.get('iscrowd')
        elif with_masks and not is_left_out and _is_beside(item['bbox'], item['segmentation'], size):
            warnings.add('objects whose bbox is not around their polygons', f'{name} has bbox {item["bbox"]}')
    (warnings if filled_ids else errors).update(strays)
    pictures = {image_id: (files[image_id], size, num_loaded[image_id]) for image_id, size in sizes.items()}
    num_empty = len(sizes.keys() - filled_ids)
    categories = tuple(names.values())
    return Annotations(pictures, num_empty, num_rles, categories, objects, errors, masks, in_evaluation, warnings)


def read_annotations(path: Union[str, Path], form: str) -> dict[str, list[Any]]:
    """Return the lists of a file.

    COCO's files of test pictures have no annotations: an empty list is returned.

    Raises:
        DataError: if the file is no JSON with the lists of the format.
    """
    try:
        data: dict[str, list[Any]] = json.loads(decode(read_file(path, LARGEST_FILE)))
    except RecursionError as error:
        raise DataError(f'{path} is no annotation file: it is nested more than a thousand times') from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise DataError(f'{path} is no JSON in UTF-8: {error}') from error
    if isinstance(data, dict):
        data.setdefault('annotations', [])
    for table in TABLES:
        if not isinstance(data, dict) or not isinstance(data.get(table), list):
            raise DataError(
                f"{path} is not in {form}'s format: it has no list {table!r}. Export COCO or YOLO (mmdet), or "
                'label PNGs (mmseg), or convert it: see docs/guides/own_data.md'
            )
    return data


def _read_entries(table: str, entries: list[Any], errors: Faults) -> list[tuple[str, dict[str, Any]]]:
    """Return the entries of a table that can be read, with names for messages, and add the others to `errors`."""
    readable = []
    ids = set()
    for index, entry in enumerate(entries):
        entry_id = entry.get('id') if isinstance(entry, dict) else None
        name = f'{TABLES[table]} {entry_id if type(entry_id) in (int, str) else f"[{index}]"}'
        try:
            _check_entry(table, check_type('the entry', entry, dict, 'an object'))
        except KeyError as error:
            errors.add(f'{table} without {error.args[0]!r}', name)
        except (TypeError, ValueError) as error:
            errors.add(f'{table} that cannot be read', f'{name}: {error}')
        else:
            if 'id' in entry and entry_id in ids:
                errors.add(f'{table} with the id of another: ids must be unique', name)
            else:
                readable.append((name, entry))
            ids.add(entry_id)
    return readable


def _check_entry(table: str, entry: dict[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError for an entry that mmdet or pycocotools cannot read."""
    hash(entry['id'])
    if table == 'images':
        check_int('height', entry['height'], 1)
        check_int('width', entry['width'], 1)
        check_type('file_name', entry.get('file_name', entry.get('coco_url')), str, 'the name of a file')
    elif table == 'categories':
        check_type('name', entry['name'], str, 'a string')
    else:
        check_int('id', entry['id'])
        hash((entry['image_id'], entry['category_id']))
        for value in check_sequence('bbox', entry['bbox'], 'four finite numbers', 4):
            check_number('bbox', value)
        check_number('area', entry['area'])


def _check_box(name: str, item: dict[str, Any], size: tuple[int, int], warnings: Faults) -> bool:
    """Return whether mmdet leaves an object out for its box."""
    x, y, width, height = box = item['bbox']
    has = f'{name} has bbox {box}'
    has_in_size = f'{has}, its image {item["image_id"]} is {size[1]}x{size[0]}'
    if width < 1 or height < 1 or item['area'] <= 0:
        warnings.add('objects without area, which are left out', has)
        return True
    if x >= size[1] or y >= size[0] or x + width <= 0 or y + height <= 0:
        warnings.add('boxes outside their image, which are left out', has_in_size)
        return True
    if x < -1 or y < -1 or x + width > size[1] + 1 or y + height > size[0] + 1:
        warnings.add('boxes that reach out of their image', has_in_size)
    return False


def _is_beside(box: list[float], polygons: list[list[float]], size: tuple[int, int]) -> bool:
    """Return whether a bbox and the box around polygons share less than half of their union, inside the picture."""
    x, y, width, height = box
    corners = [x, y, x + width, y + height]
    outer_edges = [edge([edge(polygon[axis::2]) for polygon in polygons]) for edge in (min, max) for axis in (0, 1)]
    (x1, y1, x2, y2), (x3, y3, x4, y4) = (
        [min(max(value, 0), size[1 - index % 2]) for index, value in enumerate(edges)]
        for edges in (corners, outer_edges)
    )
    shared = max(0, min(x2, x4) - max(x1, x3)) * max(0, min(y2, y4) - max(y1, y3))
    return 3 * shared < (x2 - x1) * (y2 - y1) + (x4 - x3) * (y4 - y3)
