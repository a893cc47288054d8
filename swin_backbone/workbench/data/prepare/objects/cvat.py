"""XML of CVAT for images 1.1, a file for all pictures.

Source: docs.cvat.ai/docs/dataset_management/formats/format-cvat. datumaro, which reads the format too, installs twelve
packages.
"""

from pathlib import Path
from typing import Any, Optional
from xml.etree.ElementTree import Element

import numpy as np

from .....checks import LARGEST_FILE, DataError
from .....openmmlab.errors import Faults
from ..folder import DataFolder, format_left_out, format_line
from ..pairs import leave_out_labels
from ..records import GivenSplit, PicturesBySplit, Records
from ..splits import find_split, index_tails, match_name, read_split_lists
from .convert import PictureAnnotations, convert_objects, parse_size
from .shapes import Box, find_corners, join_groups, make_bitmap_box, make_box, make_ellipse
from .voc import parse_xml

ROOT = r'<annotations[\s>]'
ELEMENT_FORMS = dict(
    box='xtl, ytl, xbr, ybr',
    polygon='points="X,Y;X,Y;X,Y"',
    ellipse='cx, cy, rx, ry',
    mask='rle with width * height pixels, and left, top, width, height inside the picture',
)
WITH_AREA = ('any', 'rectangle', *ELEMENT_FORMS)  # types of labels


def read(folder: DataFolder) -> Records:
    """Read XML files with an element for each picture. Subsets called Train and Validation are the split."""
    files = folder.find_matching('.xml', ROOT)
    pictures = leave_out_labels(folder.pictures)
    tails = index_tails(pictures)
    annotations: dict[Path, Optional[PictureAnnotations]] = {}
    lists: PicturesBySplit = {}
    names: dict[str, None] = {}
    for file in files:
        root = parse_xml(file, LARGEST_FILE)
        if root.find('track') is not None:
            raise DataError(f'{file} has tracks of CVAT for video: export CVAT for images 1.1, or COCO')
        for label in root.iterfind('./meta//label'):
            if label.findtext('type', 'any') in WITH_AREA and (name := label.findtext('name')):
                names[name] = None
        images = file.relative_to(folder.ann_root).parent / 'images'  # where archives of exports have the pictures
        for image in root.iterfind('image'):
            stated, subset = image.get('name', ''), image.get('subset', '')
            entry = PictureAnnotations(f'{file}: image {image.get("id")} ({stated!r})', image)
            candidates = (f'{images}/{subset}/{stated}', f'{images}/{stated}')
            picture = next(filter(None, (match_name(candidate, tails) for candidate in candidates)), None)
            if picture is None:
                raise DataError(f'{entry}: below {folder.root} is no picture of this name, or several')
            if other := annotations.get(picture):
                raise DataError(f'{other} and {entry} are of the same picture {picture}')
            annotations[picture] = entry
            if split := find_split(Path(subset)):
                lists.setdefault(split, []).append(picture)
    numbered, source = folder.read_class_names()
    records = convert_objects(
        folder,
        'CVAT for images',
        annotations,
        GivenSplit(lists, 'subsets of CVAT') if lists else read_split_lists(folder, pictures),
        read=read_cvat,
        name_classes=lambda used: list(numbered.values() if numbered else names) or sorted(used),
    )
    records.lines.extend(format_left_out('pictures without an entry', {*pictures} - annotations.keys()))
    records.lines.append(format_line('', f'from {source or "the labels of the XML"}'))
    return records


def read_cvat(
    annotations: PictureAnnotations, size: tuple[int, int], left_out: Faults
) -> tuple[tuple[int, int], list[Box]]:
    """Return size and objects of an `image` element. Shapes with the same label and group_id are parts of an object.

    Args:
        size: height and width of the picture, for an element without a size.
        left_out: receives the shapes without an area.

    Raises:
        DataError: with file, picture and element.
    """
    image = annotations.content
    size = parse_size(image.get('height'), image.get('width')) or size
    boxes = []
    for index, shape in enumerate(image):
        key = f'{annotations}: {shape.tag} {index}'
        if shape.tag not in ELEMENT_FORMS:
            left_out.add(f'elements <{shape.tag}>', str(annotations))
            continue
        if not shape.get('label'):
            raise DataError(f'{key} has no label')
        try:
            box = _read_shape(shape, shape.attrib['label'], size)
        except (KeyError, TypeError, ValueError) as error:
            values = {name: value for name, value in shape.attrib.items() if name in ELEMENT_FORMS[shape.tag]}
            raise DataError(f'{key} takes {ELEMENT_FORMS[shape.tag]}; got {values!r:.120}') from error
        group = shape.get('group_id', '0')
        boxes.append((group if group != '0' else None, box))
    return size, join_groups(boxes)


def _read_shape(shape: Element, name: str, size: tuple[int, int]) -> Box:
    def read_numbers(*keys: str) -> list[float]:
        return [float(shape.attrib[key]) for key in keys]

    if shape.tag == 'polygon':
        points: Any = [[float(number) for number in pair.split(',')] for pair in shape.attrib['points'].split(';')]
        return make_box(name, points, size)
    if shape.tag == 'mask':
        x, y, width, height = map(int, read_numbers('left', 'top', 'width', 'height'))
        runs = [int(run) for run in shape.attrib['rle'].split(',')]
        bitmap = np.repeat(np.arange(len(runs)) % 2, runs).reshape(height, width)
        return make_bitmap_box(name, bitmap, x, y, size)
    degrees = float(shape.get('rotation', 0))
    if shape.tag == 'ellipse':
        *middle, radius_x, radius_y = read_numbers('cx', 'cy', 'rx', 'ry')
        return make_box(name, make_ellipse(middle, (radius_x, radius_y), degrees), size)
    left, top, right, bottom = read_numbers('xtl', 'ytl', 'xbr', 'ybr')
    return make_box(name, find_corners(left, top, right, bottom, degrees), size, is_rectangle=True)
