"""Recognise the layout of a folder of pictures and annotations, and write its index.

Layouts are COCO JSON, YOLO's text files, XML of Pascal VOC and CVAT, labelme's JSON, labels as pictures, and a folder
for each class. A missing split into training and validation is drawn.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Optional

from ....openmmlab.errors import DataError
from .classes import find_classes
from .folder import DataFolder, OwnData, count_suffixes, is_picture, line, list_files, list_folders
from .labels import find_labels
from .objects.coco import find_coco
from .objects.cvat import find_cvat
from .objects.labelme import SHAPES, find_labelme
from .objects.voc import find_voc
from .objects.yolo import find_yolo

Finder = Callable[[DataFolder], Optional[OwnData]]
# By toolbox: what finds the data of a config among files with a suffix, and what is looked for
FINDERS: dict[str, tuple[dict[Finder, str], str]] = {
    'mmdet': (
        {find_labelme: '.json', find_cvat: '.xml', find_coco: '.json', find_yolo: '', find_voc: '.xml'},
        'a JSON in the format of COCO or labelme, text files of YOLO, or XML of Pascal VOC or CVAT for images',
    ),
    'mmpretrain': ({find_classes: ''}, 'a folder of pictures for each class, or lists train.txt and val.txt'),
    'mmseg': ({find_labels: ''}, 'a PNG of labels for each picture, in folders called labels, masks or annotations'),
}


def find_data(scope: str, folder: DataFolder) -> OwnData:
    """Recognise pictures and annotations for a toolbox, a key of FINDERS, and write an index for each split.

    Raises:
        DataError: if no layout fits.
    """
    left_out = f'; not read, as results of earlier commands: {", ".join(folder.results)}' if folder.results else ''
    if not (folder.pictures or folder.holding('.json', SHAPES)):  # labelme's files may hold the pictures
        raise DataError(f'there is no picture below {folder.root}, which has {count_suffixes(folder.files)}{left_out}')
    finders, layouts = FINDERS[scope]
    files = folder.ann_files if folder.one_file is None else [folder.one_file]
    suffixes = {'', *(path.suffix.lower() for path in files)}
    first_error = None  # a broken file may be beside a whole layout
    for find, suffix in finders.items():
        try:
            own = find(folder) if suffix in suffixes else None
        except DataError as error:
            first_error = first_error or error
            continue
        if own:
            if first_error:
                own.lines.append(line('left out', str(first_error)))
            if folder.results:
                own.lines.append(line('not read', f'results of earlier commands: {", ".join(folder.results)}'))
            return own
    raise first_error or DataError(
        f'no annotations for a config of {scope} were found in {folder.ann_root}: looked for {layouts}; found '
        f'{count_suffixes(folder.ann_files)} in {list_folders(folder.ann_files)}{left_out}. datumaro and supervision '
        'convert between formats: see docs/guides/own_data.md'
    )


def list_data(data: Path, annotations: Optional[Path], outputs: Path) -> DataFolder:
    """List the files of a user.

    Args:
        data: a folder, a COCO JSON, YOLO's data.yaml, or CVAT's XML.
        annotations: a file or folder, if they are not below `data`.
        outputs: folder for splits and converted annotations.

    Raises:
        DataError: if a file is no annotation file.
    """
    one_file = next((path for path in (annotations, data) if path is not None and not path.is_dir()), None)
    if one_file is not None and one_file.suffix.lower() not in ('.json', '.xml', '.yaml', '.yml'):
        raise DataError(
            f"{one_file} is no annotation file: it takes a COCO JSON, YOLO's data.yaml, CVAT's XML, or a folder"
        )
    root = data if data.is_dir() else data.parent
    files, results = list_files(root)
    if not data.is_dir() and not any(is_picture(path) for path in files):
        root = root.parent  # of annotations/instances_train.json
        files, results = list_files(root)
    ann_root, ann_files = root, files
    if annotations is not None:
        ann_root = annotations if annotations.is_dir() else annotations.parent
        ann_files, ann_results = list_files(ann_root)
        results += ann_results
    return DataFolder(root, files, ann_root, ann_files, outputs, results, one_file)
