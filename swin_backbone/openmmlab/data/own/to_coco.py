"""YOLO's text files and Pascal VOC's XML as annotations in COCO's format, which mmdet reads and evaluates.

mmdet's own XMLDataset takes pictures with the suffix .jpg alone, and its metric has no AP over several overlaps.

Sources: docs.ultralytics.com/datasets/detect and /segment; the devkit of VOC 2012, section 3, and mmdet's XMLDataset.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional
from xml.etree import ElementTree

import numpy as np

from ...errors import DataError
from ..media import picture_size

BEYOND = 0.01  # of a side: how far a box of YOLO may go beyond its picture, by rounding; it is cut there
MOST_CLASSES = 1 << 16  # that have no names: a text file of YOLO's form may hold something else


class Annotated(NamedTuple):
    """A picture and the file of its objects, None where it has none."""

    picture: Path  # relative to the root
    file: Optional[Path]


class Box(NamedTuple):
    """An object: its class, (x, y, width, height) in pixels, its outline, and whether it is left out of scores."""

    category: str
    bbox: tuple[float, float, float, float]
    outline: Optional[list[float]] = None
    is_ignored: bool = False


def coco_of(root: Path, pictures: Iterable[Annotated], classes: Sequence[str], read: Any) -> dict[str, Any]:
    """The annotations of pictures in COCO's format.

    Args:
        read: gives the boxes of (file, (height, width)).

    Raises:
        DataError: if a file cannot be read or is wrong, naming it.
    """
    ids = {name: number for number, name in enumerate(classes, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for picture, file in pictures:
        try:
            height, width = picture_size(root / picture)
        except OSError as error:
            raise DataError(str(error)) from error
        images.append(dict(id=len(images) + 1, file_name=picture.as_posix(), height=height, width=width))
        for box in read(file, (height, width)) if file is not None else ():
            if box.category not in ids:
                raise DataError(f'{file} has the class {box.category!r}, which is none of {list(classes)}')
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=len(images),
                    category_id=ids[box.category],
                    bbox=list(box.bbox),
                    area=box.bbox[2] * box.bbox[3] if box.outline is None else _area(box.outline),
                    iscrowd=int(box.is_ignored),
                    **({} if box.outline is None else dict(segmentation=[box.outline])),
                )
            )
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return dict(images=images, annotations=annotations, categories=categories)


def read_yolo(file: Path, size: tuple[int, int], classes: Sequence[str], points: int = 0) -> list[Box]:
    """The boxes of a text file of YOLO: CLASS X Y WIDTH HEIGHT a line, or CLASS and the points of an outline.

    Positions are shares of the picture's width and height, X and Y the centre.

    Args:
        points: how many numbers are behind each box, of the points of a pose, which are left out.

    Raises:
        DataError: naming file and line.
    """
    height, width = size
    takes = 'CLASS X Y WIDTH HEIGHT' + (f' and {points} numbers of points' if points else ', or CLASS and points')
    boxes = []
    for number, line in enumerate(_lines(file), 1):
        words = line.split()
        if not words:
            continue
        values = _numbers(words)
        is_outline = not points and len(values or ()) >= 7 and len(values or ()) % 2 == 1
        if values is None or not (is_outline or len(values) == 5 + points):
            raise DataError(f'{file}, line {number}, takes {takes}; got {line!r:.80}')
        if points:
            values = values[:5]
        if values[0] % 1 or not 0 <= values[0] < len(classes):
            raise DataError(
                f'{file}, line {number}: the class is a whole number from 0 to {len(classes) - 1}, got {words[0]!r}'
            )
        if not all(-BEYOND <= value <= 1 + BEYOND for value in values[1:]):
            raise DataError(f'{file}, line {number}, takes shares of the picture, from 0 to 1; got {line!r:.80}')
        outline: Optional[list[float]] = None
        if len(values) == 5:
            x, y, w, h = values[1:]
            left, right, top, bottom = x - w / 2, x + w / 2, y - h / 2, y + h / 2
        else:
            xs, ys = np.clip(values[1::2], 0, 1), np.clip(values[2::2], 0, 1)
            left, right, top, bottom = xs.min(), xs.max(), ys.min(), ys.max()
            outline = np.stack([xs * width, ys * height], axis=1).ravel().round(3).tolist()
        left, right = (min(max(float(v), 0.0), 1.0) * width for v in (left, right))
        top, bottom = (min(max(float(v), 0.0), 1.0) * height for v in (top, bottom))
        bbox = (round(left, 3), round(top, 3), round(right - left, 3), round(bottom - top, 3))
        boxes.append(Box(classes[int(values[0])], bbox, outline))
    return boxes


def yolo_classes(files: Iterable[Path]) -> int:
    """How many classes text files of YOLO name: the largest number in them, and one.

    Raises:
        DataError: if a line does not begin with a number, or with one that is too large.
    """
    largest = -1.0
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            values = _numbers(line.split()[:1])
            if values is None:
                raise DataError(f'{file}, line {number}, takes CLASS X Y WIDTH HEIGHT, got {line!r:.80}')
            if max(values, default=0.0) >= MOST_CLASSES:
                raise DataError(
                    f'{file}, line {number}: {values[0]:.0f} is no class: at most {MOST_CLASSES:,} are taken'
                )
            largest = max([largest, *values])
    return int(largest) + 1


def is_yolo(file: Path) -> bool:
    """Whether the first line of a text file is one of YOLO's; an empty file is, of a picture without objects."""
    lines = _lines(file)
    values = _numbers(lines[0].split()) if lines else []
    return values is not None and (not lines or len(values) >= 5)


def read_voc(file: Path, size: tuple[int, int]) -> list[Box]:
    """The boxes of an XML file of VOC, whose pixels count from 1; one that is marked difficult is left out of scores.

    Raises:
        DataError: naming the file and what it lacks.
    """
    boxes = []
    for index, (name, node) in enumerate(_voc_objects(file)):
        corners = [node.findtext(f'bndbox/{key}') for key in ('xmin', 'ymin', 'xmax', 'ymax')]
        values = _numbers([corner or '' for corner in corners])
        if values is None or values[2] < values[0] or values[3] < values[1]:
            raise DataError(
                f'{file}: bndbox of object {index} takes xmin, ymin, xmax, ymax, the first two below; got {corners}'
            )
        height, width = size
        left, right = (min(max(value - 1, 0.0), width) for value in values[::2])
        top, bottom = (min(max(value - 1, 0.0), height) for value in values[1::2])
        is_difficult = (node.findtext('difficult') or '0').strip() not in ('', '0')
        boxes.append(Box(name, (left, top, right - left, bottom - top), is_ignored=is_difficult))
    return boxes


def voc_classes(files: Iterable[Path]) -> list[str]:
    """The names of the objects in XML files of VOC, sorted.

    Raises:
        DataError: see `read_voc`.
    """
    return sorted({name for file in files for name, _ in _voc_objects(file)})


def is_voc(file: Path) -> bool:
    """Whether an XML file is one of VOC's.

    Raises:
        DataError: if it is no XML at all.
    """
    return _parse(file).tag == 'annotation'


def _voc_objects(file: Path) -> list[tuple[str, ElementTree.Element]]:
    found = []
    for index, node in enumerate(_parse(file).iter('object')):
        name = (node.findtext('name') or '').strip()
        if not name:
            raise DataError(f'{file}: object {index} has no name')
        found.append((name, node))
    return found


def _parse(file: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:
        raise DataError(f'{file} cannot be read as XML: {error}') from error


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding='utf-8-sig').strip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f'{file} cannot be read: {error}') from error


def _numbers(words: Sequence[str]) -> Optional[list[float]]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None


def _area(outline: Sequence[float]) -> float:
    """Of a polygon of x and y in turn, by the shoelace formula."""
    x, y = np.array(outline[::2]), np.array(outline[1::2])
    return float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2)
