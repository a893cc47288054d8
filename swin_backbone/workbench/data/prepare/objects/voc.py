"""Pascal VOC's XML files, one for each picture.

Sources: the devkit of VOC 2012, section 3, and mmdet's XMLDataset; the exports of CVAT, Label Studio and Roboflow.
"""

import math
from pathlib import Path
from typing import Optional
from xml.etree import ElementTree

from .....checks import DataError
from .....openmmlab.errors import Faults
from ...text_files import MAX_TEXT_BYTES, read_file
from ..folder import DataFolder, format_left_out, format_line
from ..pairs import FolderTags, find_pairable_tags, find_tags, leave_out_labels
from ..records import Records
from ..splits import find_folder_split, read_split_lists
from .convert import convert_objects, parse_size
from .shapes import Box, find_corners, make_box, parse_angle


def read(folder: DataFolder) -> Optional[Records]:
    """Read an XML file for each picture, with lists of a split in ImageSets/Main."""
    files = folder.find_by_suffix('.xml') if folder.only_file is None else []
    if not files or parse_xml(files[0]).tag != 'annotation':
        return None
    pictures = leave_out_labels(folder.pictures)
    by_stem: dict[str, list[Path]] = {}
    for picture in pictures:
        by_stem.setdefault(picture.stem, []).append(picture)
    pairable = find_pairable_tags(pictures, (file.relative_to(folder.ann_root) for file in files))
    by_picture: dict[Path, Optional[Path]] = {}
    for file in files:
        by_picture[_find_picture(file.relative_to(folder.ann_root), by_stem, pairable, folder)] = file
    numbered, source = folder.read_class_names()
    if numbered:
        names = list(numbered.values())
    else:
        names, source = list(folder.read_labelmap()), 'labelmap.txt'
    source = f'from {source}' if names else 'in the order of the alphabet: there is no classes.txt'

    def name_classes(used: set[str]) -> list[str]:
        if numbered or not names:
            return names or sorted(used)
        return [name for name in names if name in used or name != 'background']

    given_split = read_split_lists(folder, pictures, 'Main')
    records = convert_objects(folder, 'Pascal VOC XML', by_picture, given_split, read_voc, name_classes)
    records.lines.extend(format_left_out('pictures without an XML file', {*pictures} - by_picture.keys()))
    records.lines.append(format_line('', source))
    return records


def _find_picture(
    file: Path,
    by_stem: dict[str, list[Path]],
    pairable: dict[FolderTags, set[FolderTags]],
    folder: DataFolder,
) -> Path:
    """Return the picture with the name of an XML file, or the name inside. Of several, split and folder decide."""
    stated = parse_xml(folder.ann_root / file).findtext('filename') if file.stem not in by_stem else None
    pictures = by_stem.get(Path(stated).stem if stated else file.stem, [])
    pictures = [picture for picture in pictures if find_tags(file) in pairable[find_tags(picture)]]
    pictures = [picture for picture in pictures if find_folder_split(picture) == find_folder_split(file)] or pictures
    pictures = [picture for picture in pictures if picture.parent == file.parent] or pictures
    if len(pictures) != 1:
        count = f'{len(pictures)} pictures of its name: ' if pictures else 'no picture'
        count += ', '.join(map(str, pictures[:3]))
        raise DataError(
            f'{folder.ann_root / file} belongs to a picture of its name, and below {folder.root} there is {count}'
        )
    return pictures[0]


def read_voc(file: Path, size: tuple[int, int], _: Faults) -> tuple[tuple[int, int], list[Box]]:
    """Return size and boxes of an XML file, whose pixels count from 1. Scores leave out objects marked as difficult.

    Args:
        size: height and width of the picture, for a file without a size.

    Raises:
        DataError: with the file, and the wrong object.
    """
    root = parse_xml(file)
    size = parse_size(root.findtext('size/height'), root.findtext('size/width')) or size
    boxes = []
    for index, node in enumerate(root.iter('object')):
        name = (node.findtext('name') or '').strip()
        if not name:
            raise DataError(f'{file}: object {index} has no name')
        corners = [node.findtext(f'bndbox/{key}') for key in ('xmin', 'ymin', 'xmax', 'ymax')]
        try:
            left, top, right, bottom = (float(corner or '') for corner in corners)
            is_box = all(map(math.isfinite, (left, top, right, bottom))) and right >= left and bottom >= top
        except ValueError:
            is_box = False
        if not is_box:
            raise DataError(
                f'{file}: bndbox of object {index} takes xmin, ymin, xmax, ymax, the first two below; got {corners}'
                + ('. If it has polygons, export COCO' if not any(corners) else '')
            )
        attributes = {
            attribute.findtext('name'): attribute.findtext('value')
            for attribute in node.iterfind('attributes/attribute')
        }
        degrees = parse_angle(attributes.get('rotation'))  # CVAT does not turn the box
        outline = find_corners(left - 1, top - 1, right - 1, bottom - 1, degrees)
        is_difficult = (node.findtext('difficult') or '0').strip() not in ('', '0')
        boxes.append(make_box(name, outline, size, is_rectangle=True)._replace(is_ignored=is_difficult))
    return size, boxes


def parse_xml(file: Path, max_bytes: int = MAX_TEXT_BYTES) -> ElementTree.Element:
    """Return the root of an XML file of at most so many bytes."""
    content = read_file(file, max_bytes)
    try:
        return ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f'{file} cannot be read as XML: {error}') from error
