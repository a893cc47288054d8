"""Recognise the layout of a folder of pictures and annotations, and describe it as `own_data`.

Layouts are COCO JSON, YOLO's text files, XML of Pascal VOC and CVAT, labelme's JSON, labels as pictures, and a folder
for each class. What the toolboxes cannot read is converted into a folder of the run. A missing split into training and
validation is drawn.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional, Union

from filelock import FileLock
from mmengine.config import Config

from ....openmmlab.errors import DataError
from ..annotations import uses_masks
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


def find_data(
    cfg: Config,
    data: Union[str, Path],
    annotations: Union[str, Path, None],
    folder: Union[str, Path],
    names: Optional[Sequence[str]] = None,
) -> OwnData:
    """Recognise pictures and annotations for a config of mmdet, mmseg or mmpretrain.

    Args:
        data: a folder, a COCO JSON, YOLO's data.yaml, or CVAT's XML.
        annotations: a file or folder, if they are not below `data`.
        folder: for a split, and annotations in a format of the toolbox.
        names: of the classes; default: from files.

    Raises:
        ValueError: if the config is of another toolbox, or there is no such file or folder.
        DataError: if no layout fits, or the data does not fit the config.
    """
    scope = cfg.get('default_scope')
    if scope not in FINDERS:
        raise ValueError(f'--data takes a config of mmdet, mmseg or mmpretrain, got default_scope={scope!r}')
    for argument, given in (('--data', data), ('--annotations', annotations)):
        if given is not None and not Path(given).exists():
            raise ValueError(f'{argument}: there is no {str(given)!r}')
    outputs = Path(folder)
    outputs.mkdir(parents=True, exist_ok=True)
    with FileLock(outputs / '.lock'):  # each process of a distributed run writes the same
        files = _list(Path(data), None if annotations is None else Path(annotations), outputs, names)
        return _find(scope, files._replace(with_masks=uses_masks(cfg)))


def _find(scope: str, folder: DataFolder) -> OwnData:
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


def _list(data: Path, annotations: Optional[Path], outputs: Path, names: Optional[Sequence[str]]) -> DataFolder:
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
    results = [name for name in results if (root / name).resolve() != outputs.resolve()]  # of this run
    ann_root, ann_files = root, files
    if annotations is not None:
        ann_root = annotations if annotations.is_dir() else annotations.parent
        ann_files, ann_results = list_files(ann_root)
        results += ann_results
    return DataFolder(root, files, ann_root, ann_files, outputs, results, one_file, names)
