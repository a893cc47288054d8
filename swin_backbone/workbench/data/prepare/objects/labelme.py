"""labelme's JSON files, one for each picture.

Sources: labelme 5 and 6, and labelme2coco.py; X-AnyLabeling writes the same with `rotation` and `difficult`.
supervision names no file in its errors, and leaves out circles and masks.
"""

import base64
import json
import math
import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import cv2
import numpy as np

from .....checks import LARGEST_FILE
from .....openmmlab.errors import DataError, Faults
from ....configs.text_files import read_text
from ..folder import LABELME_MARKS, DataFolder, format_left_out, format_line
from ..pairs import FolderTags, find_pairable_tags, find_tags, without_labels
from ..records import Records
from ..splits import index_tails, match_name, read_split_lists
from .convert import Part, convert_objects, parse_size
from .shapes import Box, ellipse, find_corners, join_groups, make_bitmap_box, make_box

SHAPES = r'"(shapes"\s*:\s*\[|imageData"\s*:)'  # in a file of labelme
SHAPE_FORMS = dict(
    **dict.fromkeys(('polygon', 'rotation', 'oriented_rectangle'), 'three points or more, an x and a y each'),
    rectangle='two corners, an x and a y each',
    circle='the centre and a point of the edge',
    mask='its corners in the picture, and a PNG of this size in base64',
)


def read(folder: DataFolder) -> Records:
    """Read a JSON file for each picture, with `imagePath` or the name of the picture."""
    files = folder.find_matching('.json', SHAPES)
    pictures = without_labels(folder.pictures)
    tails = index_tails(pictures)
    pairable = find_pairable_tags(pictures, (file.relative_to(folder.ann_root) for file in files))
    parts: dict[Path, Optional[Part]] = {}
    for file in files:
        data = _parse(file)
        picture = _find_picture(file, data, tails, pairable, folder)
        if other := parts.get(picture):
            raise DataError(f'{other} and {file} are of the same picture {picture}: see their imagePath')
        parts[picture] = Part(str(file), {name: value for name, value in data.items() if name != 'imageData'})
    numbered, source = folder.read_class_names()
    faults = Faults()

    def classes(used: set[str]) -> list[str]:
        return [name for name in (numbered or {}).values() if name in used or name not in LABELME_MARKS] or sorted(used)

    lists = read_split_lists(folder, pictures)
    records = convert_objects(
        folder, 'labelme JSON', parts, lists, lambda part, size: read_labelme(part, size, faults), classes, faults
    )
    records.lines.extend(format_left_out('pictures without a JSON file', {*pictures} - parts.keys()))
    records.lines.extend(format_left_out('other JSON files', {*folder.with_suffix('.json')} - {*files}))
    source = f'from {source}' if numbered else 'in the order of the alphabet: there is no classes.txt'
    records.lines.append(format_line('', source))
    return records


def _parse(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(file, LARGEST_FILE))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f'{file} cannot be read as JSON: {error}') from error
    if not isinstance(data, dict) or not isinstance(data.get('shapes'), list):
        raise DataError(f"{file} is no file of labelme: it has no list 'shapes'")
    return data


def _find_picture(
    file: Path,
    data: Mapping[str, Any],
    tails: Mapping[str, list[Path]],
    pairable: Mapping[FolderTags, set[FolderTags]],
    folder: DataFolder,
) -> Path:
    """Return the picture of `imagePath`, which is relative to the file, or else of the file's name."""
    relative, path = file.relative_to(folder.ann_root), str(data.get('imagePath') or '').replace('\\', '/')
    whole_path = os.path.normpath(relative.parent / path)
    picture = (match_name(whole_path, tails) if path else None) or match_name(str(relative.with_suffix('')), tails)
    if picture is None or ('/' not in path and find_tags(relative) not in pairable[find_tags(picture)]):
        hint = '; imageData has the picture: `labelme_export_json` writes a file of it' if data.get('imageData') else ''
        raise DataError(
            f'{file}: imagePath is {path!r}, and below {folder.root} is no picture of this name, or several{hint}'
        )
    return picture


def read_labelme(part: Part, size: tuple[int, int], faults: Faults) -> tuple[tuple[int, int], list[Box]]:
    """Return size and objects of a picture. Shapes with the same label and group_id are parts of an object.

    Args:
        size: height and width of the picture, for a file without a size.
        faults: gets the shapes without an area.

    Raises:
        DataError: with file and key.
    """
    size = parse_size(part.content.get('imageHeight'), part.content.get('imageWidth')) or size
    boxes = []
    for index, shape in enumerate(part.content['shapes']):
        key = f'{part}: shapes[{index}]'
        if not isinstance(shape, dict):
            raise DataError(f'{key} takes an object, got {shape!r:.80}')
        kind = shape.get('shape_type') or 'polygon'
        if kind not in SHAPE_FORMS:
            faults.add(f'shapes of the type {kind!r}', str(part))
            continue
        name = str(shape.get('label') or '').strip()
        if not name:
            raise DataError(f'{key}.label takes the name of a class, got {shape.get("label")!r}')
        try:
            box = _read_shape(kind, name, shape, size)
        except (KeyError, TypeError, ValueError, cv2.error) as error:
            raise DataError(
                f'{key}.points: a {kind} takes {SHAPE_FORMS[kind]}; got {shape.get("points")!r:.80}'
            ) from error
        group = None if shape.get('group_id') is None else str(shape['group_id'])
        boxes.append((group, box._replace(is_ignored=bool(shape.get('difficult')))))
    return size, join_groups(boxes)


def _read_shape(kind: str, name: str, shape: Mapping[str, Any], size: tuple[int, int]) -> Box:
    points = shape['points']
    if kind == 'mask':
        (left, top), (right, bottom) = (map(int, corner) for corner in points)
        png = np.frombuffer(base64.b64decode(shape['mask']), np.uint8)
        bitmap = cv2.imdecode(png, cv2.IMREAD_GRAYSCALE)
        if bitmap is None or bitmap.shape != (bottom - top + 1, right - left + 1):
            raise ValueError('a PNG of another size')
        return make_bitmap_box(name, bitmap, left, top, size)
    if kind == 'circle':
        points = ellipse(points[0], [math.dist(*points)] * 2)
    if kind == 'rectangle' and len(points) > 1:  # two corners, or all four
        points = find_corners(*np.min(points, 0), *np.max(points, 0))
    return make_box(name, points, size, kind == 'rectangle')
