"""Annotations in COCO's formats: one schema of what mmdet and pycocotools take, for whatever reads them.

pycocotools reads and writes outside of its memory where a polygon or an RLE is wrong, and COCO's evaluation needs
fields that training does not, after the last picture. So every annotation file is checked before either reads it, once
in a process. Of other formats `mask_fault` looks at each object's mask when its picture is loaded: see guard.py.
"""

import inspect
import json
import os
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, Registry

from ...checkpoints.errors import first_of
from ..config.paths import require_file
from ..errors import DataError, Faults

CLASSES_SHOWN = 10  # in an error
MAX_PIXELS = 2**29  # of a picture: the run lengths of a larger one overflow pycocotools' buffer (rleToString)
MAX_OUTLINE = 10**6  # pixels: pycocotools keeps about 100 bytes of each (rleFrPoly)

NO_MASK = 'objects without a segmentation, which the model is trained or tested on'
BAD_POLYGON = 'objects with a polygon that pycocotools cannot draw'
SHORT_POLYGON = 'objects with a polygon that is not three points or more, an x and a y each'
BAD_RLE = 'objects with an RLE that pycocotools cannot read'

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


class Field(NamedTuple):
    """What a key of an image, object or category holds."""

    takes: str  # in words
    accepts: Callable[[Any], bool]
    is_required: bool = True


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e9 <= value <= 1e9  # and so not NaN, nor infinite in float32


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_id(value: Any) -> bool:
    return type(value) is str or _is_whole(value) or (type(value) is float and value % 1 == 0)


def _is_path(value: Any) -> bool:
    try:
        return type(value) is str and bool(value) and b'\0' not in os.fsencode(value)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


ID = Field('a whole number or a string', _is_id)
PATH = Field('the name of a file', _is_path)
SIDE = Field('a whole number from 1', lambda value: type(value) is int and 1 <= value <= MAX_PIXELS)
FLAG = Field('0 or 1', lambda value: type(value) in (int, bool) and value in (0, 1))
NAME = Field('a string', lambda value: type(value) is str)

IMAGE = dict(id=ID, file_name=PATH, height=SIDE, width=SIDE)
CATEGORY = dict(id=ID, name=NAME)
OBJECT = dict(
    id=Field('a whole number', _is_whole),
    category_id=ID,
    bbox=Field('four finite numbers', lambda box: type(box) is list and len(box) == 4 and all(map(_is_number, box))),
    area=Field('a finite number', _is_number),
    iscrowd=FLAG._replace(is_required=False),
)
INSTANCE = dict(OBJECT, image_id=ID)
PANOPTIC = dict(image_id=ID, file_name=PATH, segments_info=Field('a list', lambda value: type(value) is list))
OPTIONAL_PATH = PATH._replace(is_required=False)

TABLES = ('images', 'categories', 'annotations')
# What the entries of each list of a file hold, by format. Of LVIS, version 1 has no file_name, version 0.5 no coco_url.
FORMS: dict[str, dict[str, dict[str, Field]]] = {
    'COCO': dict(images=IMAGE, categories=CATEGORY, annotations=INSTANCE),
    'LVIS': dict(
        images=dict(IMAGE, file_name=OPTIONAL_PATH, coco_url=OPTIONAL_PATH), categories=CATEGORY, annotations=INSTANCE
    ),
    'COCO panoptic': dict(images=IMAGE, categories=dict(CATEGORY, isthing=FLAG), annotations=PANOPTIC),
}
# The classes of mmdet that read each; what inherits from them reads the same.
FORM_OF = {
    'CocoDataset': 'COCO', 'LVISV05Dataset': 'LVIS', 'CocoPanopticDataset': 'COCO panoptic',
    'CocoMetric': 'COCO', 'LVISMetric': 'LVIS', 'LVISFixedAPMetric': 'LVIS', 'CocoPanopticMetric': 'COCO panoptic',
}  # fmt: skip
READING = ('load_data_list', 'parse_data_info')  # methods by which a class that has its own reads something else


class Annotations(NamedTuple):
    """What an annotation file holds, and what is wrong with it.

    Args:
        images: how many.
        empty: how many of them have no object.
        categories: their names, in the file's order.
        objects: how many each category has.
        errors: what mmdet cannot take, or takes for something else.
        masks: what pycocotools cannot take.
        in_evaluation: what COCO's evaluation, too, cannot take.
        warnings: what may be intended.
    """

    images: int
    empty: int
    categories: tuple[str, ...]
    objects: Counter[str]
    errors: Faults
    masks: Faults
    in_evaluation: Faults
    warnings: Faults


def class_of(config: dict[str, Any], registry: Registry = DATASETS) -> Optional[type]:
    """The class of a data set, or of a metric of METRICS, that a config names; None if it is not registered."""
    cls = config.get('type')
    if isinstance(cls, str):
        with registry.switch_scope_and_registry(None) as scoped:
            cls = scoped.get(cls)
    return cls if inspect.isclass(cls) else None


def form_of(cls: Optional[type]) -> Optional[str]:
    """The format that a data set or metric reads with pycocotools, a key of FORMS; None of any other class."""
    reading = [getattr(cls, name) for name in READING if hasattr(cls, name)]
    if cls is None or not all(method.__module__.startswith('mmdet.') for method in reading):
        return None
    return next((FORM_OF[base.__name__] for base in cls.__mro__ if base.__name__ in FORM_OF), None)


def require_classes(path: Union[str, Path], cls: type, classes: Any, with_masks: bool) -> None:
    """See that a data set's classes are categories of its annotation file, in its order.

    mmdet counts labels in the file's order, and leaves out the objects of a category that has another name.

    Args:
        cls: of the data set; one that has an order of its own is left alone.
        classes: their names, or the file that has them.

    Raises:
        DataError: if not, naming what differs.
    """
    form = form_of(cls)
    has_own_order = getattr(cls, READING[0]).__qualname__ != f'CocoDataset.{READING[0]}'
    if form is None or has_own_order or not isinstance(classes, (list, tuple)):
        return
    names = check_annotations(path, form, with_masks).categories
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


def uses_masks(cfg: Config) -> bool:
    """Whether a config trains or tests on the masks of objects."""

    def uses(node: Any) -> bool:
        if isinstance(node, dict):
            metric = node.get('metric')
            segm = metric == 'segm' or (isinstance(metric, (list, tuple)) and 'segm' in metric)
            return segm or bool(node.get('with_mask')) or any(map(uses, node.values()))
        return isinstance(node, (list, tuple)) and any(map(uses, node))

    phases = ('train', 'val', 'test')
    return any(uses(cfg.get(f'{phase}_{part}')) for phase in phases for part in ('dataloader', 'evaluator'))


def check_annotations(path: Union[str, Path], form: str, with_masks: bool) -> Annotations:
    """Look through an annotation file. What is found is kept, and the file read once, unless it changes.

    Args:
        form: a key of FORMS.
        with_masks: look at segmentations too.

    Raises:
        DataError: if it cannot be read at all, as JSON or as lists of that format.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError) as error:
        raise DataError(f'{path} cannot be read: {getattr(error, "strerror", None) or error}') from error
    annotations: Annotations = _check(
        str(Path(path)), (state.st_ino, state.st_mtime_ns, state.st_size), form, with_masks
    )
    return annotations


def require_annotations(
    path: Union[str, Path], form: str, with_masks: bool, beyond: Sequence[str] = ('masks',)
) -> Annotations:
    """See that mmdet and pycocotools can take an annotation file: see `check_annotations`.

    Args:
        beyond: what else than `errors` is refused, by its name in Annotations.

    Raises:
        DataError: if they cannot, naming the annotations.
    """
    found = check_annotations(path, form, with_masks)
    wrong = [sentence for name in ('errors', *beyond) for sentence in getattr(found, name).sentences()]
    if wrong:
        raise DataError(f'{path} has ' + '. It has '.join(wrong))
    return found


def mask_fault(segmentation: Any, size: tuple[int, int]) -> Optional[tuple[str, str]]:
    """What pycocotools cannot take of an object's mask: one of the kinds above, and what is wrong; None if it can.

    Args:
        segmentation: a list of polygons or an RLE.
        size: height and width of the picture.
    """
    if segmentation is None or segmentation == []:
        return NO_MASK, 'has none'
    if isinstance(segmentation, dict):
        reason = _rle_fault(segmentation, size)
        return (BAD_RLE, reason) if reason else None
    if not isinstance(segmentation, list) or not all(map(_has_numbers, segmentation)):
        return BAD_POLYGON, f'must be a list of lists of numbers, got {_shorten.repr(segmentation)}'
    for polygon in segmentation:
        reason = _polygon_fault(polygon, max(size)) if len(polygon) else None
        if reason:
            return BAD_POLYGON, reason
    # pycocotools takes four numbers for a box. mmdet leaves such polygons out of training, COCO's evaluation does not.
    short = next((polygon for polygon in segmentation if len(polygon) < 6 or len(polygon) % 2), None)
    return None if short is None else (SHORT_POLYGON, f'has one of {len(short)} numbers')


@lru_cache(maxsize=32)
def _check(path: str, _state: tuple[int, int, int], form: str, with_masks: bool) -> Annotations:
    data = _read(path, form)
    errors, masks, in_evaluation, warnings = Faults(), Faults(), Faults(), Faults()
    images, categories, annotations = (
        list(_whole_entries(table, data[table], FORMS[form][table], errors)) for table in TABLES
    )
    sizes = {image['id']: (image['height'], image['width']) for _, image in images}
    there = {image['id'] for image in data['images'] if type(image) is dict and _is_id(image.get('id'))}
    names = {category['id']: category['name'] for _, category in categories}
    if len({type(number) is str for number in sizes}) > 1:
        errors.add('ids of images that are strings beside others that are numbers', 'they must be of one kind')
    for name, count in Counter(names.values()).items():
        if count > 1:
            errors.add('categories of one name', repr(name))
    if not names:
        errors.add('no categories', 'each has an id and a name')
    known = first_of([f'{number} ({name})' for number, name in names.items()], CLASSES_SHOWN)
    unknown = f'objects of unknown category_id; its categories are {known}'
    is_panoptic = form == 'COCO panoptic'
    objects: Counter[str] = Counter(dict.fromkeys(names.values(), 0))
    seen = set()
    for name, item in _segments(annotations, errors) if is_panoptic else annotations:
        seen.add(item['image_id'])
        if item['category_id'] not in names:
            errors.add(unknown, f'{name} has {item["category_id"]}')
            continue
        objects[names[item['category_id']]] += 1
        size = sizes.get(item['image_id'])
        if size is None:
            if item['image_id'] not in there:  # else what is wrong with the image has been said
                warnings.add('objects of an image that is not there', name)
            continue
        is_left_out = _check_box(name, item, size, warnings) or bool(item.get('ignore'))
        if is_panoptic:
            continue
        if 'iscrowd' not in item and form == 'COCO':
            in_evaluation.add("objects without 'iscrowd', which COCO's evaluation reads", name)
        if item['id'] == 0:
            warnings.add("objects with the id 0, which COCO's evaluation counts as not found", name)
        fault = mask_fault(item.get('segmentation'), size) if with_masks else None
        if fault:
            kind, reason = fault
            (in_evaluation if is_left_out or kind == SHORT_POLYGON else masks).add(kind, f'{name} {reason}')
            if kind == SHORT_POLYGON and not is_left_out:
                warnings.add(f'{kind}: training leaves those out', f'{name} {reason}')
    return Annotations(
        len(sizes), len(sizes.keys() - seen), tuple(names.values()), objects, errors, masks, in_evaluation, warnings
    )


def _read(path: str, form: str) -> dict[str, list[Any]]:
    """The lists of a file; one without annotations, as those of COCO's test pictures, has an empty one."""
    try:
        require_file(path)
        with open(path, encoding='utf-8') as file:
            data = json.load(file)
    except OSError as error:
        raise DataError(f'{path} cannot be read: {error.strerror or error}') from error
    except RecursionError as error:
        raise DataError(f'{path} is no annotation file: it is nested more than a thousand times') from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise DataError(f'{path} is no JSON: {error}') from error
    if isinstance(data, dict):
        data.setdefault('annotations', [])
    for table in TABLES:
        if not isinstance(data, dict) or not isinstance(data.get(table), list):
            raise DataError(f"{path} is not in {form}'s format: it has no list {table!r}")
    lists: dict[str, list[Any]] = data
    return lists


def _whole_entries(
    table: str, entries: list[Any], fields: dict[str, Field], errors: Faults, where: str = ''
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a list whose fields are what they must be, with what to call them; the others are errors."""
    singular = {'categories': 'category', 'segments_info': 'segment'}.get(table, table.rstrip('s'))
    has_id = 'id' in fields
    ids = set()
    for index, entry in enumerate(entries):
        if type(entry) is not dict:
            errors.add(f'{table} that are no objects', f'{table}[{index}]{where} is {_shorten.repr(entry)}')
            continue
        number = entry.get('id') if has_id else None
        name = (f'{singular} {number}' if has_id and _is_id(number) else f'{table}[{index}]') + where
        is_whole = True
        for key, field in fields.items():
            if key not in entry:
                if field.is_required:
                    errors.add(f'{table} without {key!r}', name)
                    is_whole = False
            elif not field.accepts(entry[key]):
                errors.add(f'{table} whose {key!r} is not {field.takes}', f'{name} has {_shorten.repr(entry[key])}')
                is_whole = False
        if is_whole and has_id:
            if number in ids:
                errors.add(f'{table} whose id another has: ids must be unique', name)
                is_whole = False
            ids.add(number)
        if is_whole and table == 'images' and entry['height'] * entry['width'] > MAX_PIXELS:
            errors.add(f'images of more than {MAX_PIXELS} pixels', f'{name} is {entry["width"]}x{entry["height"]}')
            is_whole = False
        if is_whole:
            yield name, entry


def _segments(annotations: list[tuple[str, dict[str, Any]]], errors: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of panoptic annotations, whose ids are unique in a picture alone."""
    for _, annotation in annotations:
        picture = annotation['image_id']
        segments = _whole_entries('segments_info', annotation['segments_info'], OBJECT, errors, f' of image {picture}')
        for name, segment in segments:
            yield name, dict(segment, image_id=picture)


def _check_box(name: str, item: dict[str, Any], size: tuple[int, int], warnings: Faults) -> bool:
    """Whether mmdet leaves an object out for its box."""
    x, y, width, height = box = item['bbox']
    has = f'{name} has bbox {box}'
    beside = f'{has}, its image {item["image_id"]} is {size[1]}x{size[0]}'
    if width < 1 or height < 1 or item['area'] <= 0:
        warnings.add('objects without area, which are left out', has)
        return True
    if x >= size[1] or y >= size[0] or x + width <= 0 or y + height <= 0:
        warnings.add('boxes outside their image, which are left out', beside)
        return True
    if x < -1 or y < -1 or x + width > size[1] + 1 or y + height > size[0] + 1:
        warnings.add('boxes that reach out of their image', beside)
    return False


def _has_numbers(polygon: Any) -> bool:
    if isinstance(polygon, np.ndarray):
        return polygon.ndim == 1 and polygon.dtype.kind in 'iuf'
    if not isinstance(polygon, (list, tuple)):
        return False
    kinds = set(map(type, polygon)) - {int, float}
    return all(issubclass(kind, np.number) for kind in kinds)


def _polygon_fault(polygon: Sequence[float], side: int) -> Optional[str]:
    """Why a polygon cannot be drawn, for an `int` of C has to hold five times each coordinate, in mmdet magnified.

    Args:
        side: the longer one of the picture.
    """
    low, high = min(polygon), max(polygon)  # NaN is not passed on by them, unless it is the first
    if not (-side <= low and high <= 2 * side and sum(polygon) == sum(polygon)):
        return (
            f'has {_shorten.repr(list(polygon))}: coordinates must be finite, and no further out of the picture than '
            'it is large'
        )
    if len(polygon) * (high - low) > MAX_OUTLINE:
        points = np.asarray(polygon[: len(polygon) // 2 * 2], float).reshape(-1, 2)
        outline = np.abs(points - np.roll(points, 1, 0)).max(1).sum()
        if outline > MAX_OUTLINE:
            return f'has one with an outline of {outline:.0f} pixels, of at most {MAX_OUTLINE}'
    return None


def _rle_fault(rle: dict[str, Any], size: tuple[int, int]) -> Optional[str]:
    """Why an RLE cannot be decoded."""
    counts, given = rle.get('counts'), rle.get('size')
    if not isinstance(given, (list, tuple)) or set(map(type, given)) != {int} or list(given) != list(size):
        return f'has the size {_shorten.repr(given)}, its picture is {list(size)} (height, width)'
    if isinstance(counts, (str, bytes)):
        runs = _run_lengths(counts)
        if runs is None:
            return f'has counts that are no compressed RLE: {_shorten.repr(counts)}'
    elif isinstance(counts, list) and set(map(type, counts)) == {int}:
        runs = counts
    else:
        return f'has counts that are no whole numbers or string: {_shorten.repr(counts)}'
    pixels = size[0] * size[1]
    if len(runs) > pixels + 1 or min(runs) < 0 or sum(runs) != pixels:
        return f'has counts that do not add up to the {pixels} pixels of its size: {_shorten.repr(counts)}'
    return None


def _run_lengths(counts: Union[str, bytes]) -> Optional[list[int]]:
    """The lengths of runs that a compressed RLE stands for; None if it is none.

    Each is some characters of five bits, least significant first, and a sixth that says whether another follows; the
    last has the sign. From the fourth on, a length is a difference to the one two before (pycocotools' rleFrString).
    """
    try:
        data = counts.encode('ascii') if isinstance(counts, str) else counts
    except UnicodeEncodeError:
        return None
    codes = np.frombuffer(data, np.uint8).astype(np.int64) - 48
    if not len(codes) or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        return None
    last = np.flatnonzero(codes & 32 == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    places = np.arange(len(codes)) - np.repeat(first, last - first + 1)
    if places.max() > 5:  # of 30 bits, as an `int` of C has them
        return None
    runs = np.add.reduceat((codes & 31) << 5 * places, first)
    runs -= np.where(codes[last] & 16, 1 << 5 * (places[last] + 1), 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    lengths: list[int] = runs.tolist()
    return lengths
