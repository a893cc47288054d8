"""Recognise the layout of a folder of pictures and annotations, and read it.

Layouts are COCO JSON, YOLO's text files, XML of Pascal VOC and CVAT, labelme's JSON, labels as pictures, and a folder
for each class. A missing split into training and validation is drawn.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ....checks import DataError
from ..media import PICTURE_SUFFIXES
from . import classes, labels
from .folder import DataFolder, count_suffixes, format_line, list_files, list_folders
from .objects import coco, cvat, labelme, voc, yolo
from .records import Records


class Layout(NamedTuple):
    """A layout of data: its reader, which is tried if a file has the suffix, and the pattern near its beginning."""

    read: Callable[[DataFolder], Optional[Records]]
    suffix: str = ''  # '': always, also without annotation files
    pattern: str = ''


LAYOUTS: dict[str, list[Layout]] = {  # by toolbox, in the order in which they are tried
    'mmdet': [
        Layout(labelme.read, '.json', labelme.SHAPES),
        Layout(cvat.read, '.xml', cvat.ROOT),
        Layout(coco.read, '.json'),
        Layout(yolo.read),
        Layout(voc.read, '.xml'),
    ],
    'mmpretrain': [Layout(classes.read)],
    'mmseg': [Layout(labels.read)],
}
LOOKED_FOR = {
    'mmdet': 'a JSON in the format of COCO or labelme, text files of YOLO, or XML of Pascal VOC or CVAT for images',
    'mmpretrain': 'a folder of pictures for each class, or lists train.txt and val.txt',
    'mmseg': 'a PNG of labels for each picture, in folders called labels, masks or annotations',
}


def read_data(scope: str, folder: DataFolder) -> Records:
    """Recognise and read pictures and annotations for a toolbox, a key of LAYOUTS.

    Raises:
        DataError: if no layout fits.
    """
    results = ', '.join(folder.result_folders)
    not_read = f'; not read, as results of earlier commands: {results}' if results else ''
    if not (folder.pictures or folder.find_matching('.json', labelme.SHAPES)):  # labelme's files may hold the pictures
        raise DataError(f'there is no picture below {folder.root}, which has {count_suffixes(folder.files)}{not_read}')
    first_error = None  # a broken file may be beside a whole layout
    for read, suffix, pattern in LAYOUTS[scope]:
        try:
            records = read(folder) if not suffix or folder.find_matching(suffix, pattern) else None
        except DataError as error:
            first_error = first_error or error
            continue
        if records:
            if first_error:
                records.lines.append(format_line('left out', str(first_error)))
            if results:
                records.lines.append(format_line('not read', f'results of earlier commands: {results}'))
            return records
    raise first_error or DataError(
        f'no annotations for a config of {scope} were found in {folder.ann_root}: looked for '
        f'{LOOKED_FOR[scope]}; found '
        f'{count_suffixes(folder.ann_files)} in {list_folders(folder.ann_files)}{not_read}. datumaro and supervision '
        'convert between formats: see docs/guides/own_data.md'
    )


def list_data(data: Path, annotations: Optional[Path], cache_folder: Path, **options: Any) -> DataFolder:
    """List the files of a user.

    Args:
        data: a folder, a COCO JSON, YOLO's data.yaml, or CVAT's XML.
        annotations: a file or folder, if they are not below `data`.
        cache_folder: folder of all indices, which is no result of a command.
        options: `given_classes`, `with_masks` and `skip_unreadable` of a `DataFolder`.

    Raises:
        DataError: if a file is no annotation file.
    """
    only_file = next((path for path in (annotations, data) if path is not None and not path.is_dir()), None)
    if only_file is not None and only_file.suffix.lower() not in ('.json', '.xml', '.yaml', '.yml'):
        raise DataError(
            f"{only_file} is no annotation file: it takes a COCO JSON, YOLO's data.yaml, CVAT's XML, or a folder"
        )
    above = Path(os.path.abspath(data)).parent.parent  # for annotations/instances_train.json
    around_file = [data.parent] if above == Path(above.anchor) else [data.parent, above]
    for root in [data] if data.is_dir() else around_file:
        files, result_folders = list_files(root)
        if pictures := [path for path in files if path.suffix.lower() in PICTURE_SUFFIXES]:
            break
    ann_root = root if annotations is None else annotations if annotations.is_dir() else annotations.parent
    if only_file is not None:
        only_file = ann_root / os.path.relpath(only_file, ann_root)  # both are relative, or both absolute
    ann_files, ann_result_folders = (files, []) if ann_root == root else list_files(ann_root)
    result_folders += [os.path.relpath(ann_root / name, root) for name in ann_result_folders]
    cache_path = os.path.realpath(cache_folder)
    results = [name for name in dict.fromkeys(result_folders) if os.path.realpath(root / name) != cache_path]
    return DataFolder(root, files, pictures, ann_root, ann_files, results, only_file, **options)
