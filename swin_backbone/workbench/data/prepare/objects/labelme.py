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

from .....checks import LARGEST_FILE, DataError
from .....openmmlab.errors import Faults
from ...text_files import read_text
from ..folder import LABELME_MARKS, DataFolder, format_left_out, format_line
from ..pairs import FolderTags, find_pairable_tags, find_tags, leave_out_labels
from ..records import Records
from ..splits import index_tails, match_name, read_split_lists
from .convert import PictureAnnotations, convert_objects, parse_size
from .shapes import Box, find_corners, join_groups, make_bitmap_box, make_box, make_ellipse

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
    pictures = leave_out_labels(folder.pictures)
    tails = index_tails(pictures)
    pairable = find_pairable_tags(pictures, (file.relative_to(folder.ann_root) for file in files))
    annotations: dict[Path, Optional[PictureAnnotations]] = {}
    for file in files:
        content = _parse(file)
        picture = _find_picture(file, content, tails, pairable, folder)
        if other := annotations.get(picture):
            raise DataError(f'{other} and {file} are of the same picture {picture}: see their imagePath')
        content.pop('imageData', None)  # megabytes
        annotations[picture] = PictureAnnotations(str(file), content)
    numbered, source = folder.read_class_names()

    def name_classes(used: set[str]) -> list[str]:
        return [name for name in (numbered or {}).values() if name in used or name not in LABELME_MARKS] or sorted(used)

    records = convert_objects(
        folder,
        'labelme JSON',
        annotations,
        read_split_lists(folder, pictures),
        read=read_labelme,
        name_classes=name_classes,
    )
    records.lines.extend(format_left_out('pictures without a JSON file', {*pictures} - annotations.keys()))
    records.lines.extend(format_left_out('other JSON files', {*folder.find_by_suffix('.json')} - {*files}))
    source = f'from {source}' if numbered else 'in the order of the alphabet: there is no classes.txt'
    records.lines.append(format_line('', source))
    return records


def _parse(file: Path) -> dict[str, Any]:
    text = read_text(file, LARGEST_FILE)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f'{file} cannot be read as JSON: {error}') from error
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        raise DataError(f"{file} is no file of labelme: it has no list 'shapes'")
    return content


def _find_picture(
    file: Path,
    content: Mapping[str, Any],
    tails: Mapping[str, list[Path]],
    pairable: Mapping[FolderTags, set[FolderTags]],
    folder: DataFolder,
) -> Path:
    """Return the picture of `imagePath`, which is relative to the file, or else of the file's name."""
    relative = file.relative_to(folder.ann_root)
    path = str(content.get('imagePath') or '').replace('\\', '/')
    whole_path = os.path.normpath(relative.parent / path)
    picture = (match_name(whole_path, tails) if path else None) or match_name(str(relative.with_suffix('')), tails)
    if picture is None or ('/' not in path and find_tags(relative) not in pairable[find_tags(picture)]):
        hint = (
            '; imageData has the picture: `labelme_export_json` writes a file of it' if content.get('imageData') else ''
        )
        raise DataError(
            f'{file}: imagePath is {path!r}, and below {folder.root} is no picture of this name, or several{hint}'
        )
    return picture


def read_labelme(
    annotations: PictureAnnotations, size: tuple[int, int], left_out: Faults
) -> tuple[tuple[int, int], list[Box]]:
    """Return size and objects of a picture. Shapes with the same label and group_id are parts of an object.

    Args:
        size: height and width of the picture, for a file without a size.
        left_out: receives the shapes without an area.

    Raises:
        DataError: with file and key.
    """
    content = annotations.content
    size = parse_size(content.get('imageHeight'), content.get('imageWidth')) or size
    boxes = []
    for index, shape in enumerate(content['shapes']):
        key = f'{annotations}: shapes[{index}]'
        if not isinstance(shape, dict):
            raise DataError(f'{key} takes an object, got {shape!r:.80}')
        shape_type = shape.get('shape_type') or 'polygon'
        if shape_type not in SHAPE_FORMS:
            left_out.add(f'shapes of the type {shape_type!r}', str(annotations))
            continue
        name = str(shape.get('label') or '').strip()
        if not name:
            raise DataError(f'{key}.label takes the name of a class, got {shape.get("label")!r}')
        try:
            box = _read_shape(shape_type, name, shape, size)
        except (KeyError, TypeError, ValueError, cv2.error) as error:
            raise DataError(
                f'{key}.points: a {shape_type} takes {SHAPE_FORMS[shape_type]}; got {shape.get("points")!r:.80}'
            ) from error
        group = None if shape.get('group_id') is None else str(shape['group_id'])
        boxes.append((group, box._replace(is_ignored=bool(shape.get('difficult')))))
    return size, join_groups(boxes)


def _read_shape(shape_type: str, name: str, shape: Mapping[str, Any], size: tuple[int, int]) -> Box:
    points = shape['points']
    if shape_type == 'mask':
        (left, top), (right, bottom) = (map(int, corner) for corner in points)
        png = np.frombuffer(base64.b64decode(shape['mask']), np.uint8)
        bitmap = cv2.imdecode(png, cv2.IMREAD_GRAYSCALE)
        if bitmap is None or bitmap.shape != (bottom - top + 1, right - left + 1):
            raise ValueError('a PNG of another size')
        return make_bitmap_box(name, bitmap, left, top, size)
    if shape_type == 'circle':
        points = make_ellipse(points[0], [math.dist(*points)] * 2)
    if shape_type == 'rectangle' and len(points) > 1:  # two corners, or all four
        points = find_corners(*np.min(points, 0), *np.max(points, 0))
    return make_box(name, points, size, shape_type == 'rectangle')
