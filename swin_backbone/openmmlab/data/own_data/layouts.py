"""Recognise the layout of a folder of pictures and annotations, and describe it as `own_data`.

Layouts are COCO JSON, YOLO's text files, Pascal VOC's XML, and labels as pictures. What mmdet and mmseg cannot read is
converted into a folder of the run. A missing split into training and validation is drawn.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional, Union

from filelock import FileLock
from mmengine.config import Config

from ....outputs import Outputs, mark_folder
from ...errors import DataError
from ..annotations import uses_masks
from .coco import find_coco
from .folder import DataFolder, OwnData, count_suffixes, is_picture, line, list_files, list_folders
from .labels import find_labels
from .voc import find_voc
from .yolo import find_yolo

LAYOUTS = (
    'a JSON in the format of COCO, text files of YOLO, XML of Pascal VOC, or a PNG of labels for each picture, in '
    'folders called labels, masks or annotations'
)
CONVERTERS = 'datumaro and supervision convert between formats: see docs/guides/own_data.md'
Finder = Callable[[DataFolder, bool], Optional[OwnData]]
OBJECTS: tuple[Finder, ...] = (find_coco, find_yolo, find_voc)
LABELS: tuple[Finder, ...] = (find_labels,)


def find_data(
    cfg: Config,
    data: Union[str, Path],
    annotations: Union[str, Path, None],
    folder: Union[str, Path],
    names: Optional[Sequence[str]] = None,
) -> OwnData:
    """Recognise pictures and annotations for a config of mmdet or mmseg.

    Args:
        data: a folder, a COCO JSON, or YOLO's data.yaml.
        annotations: a file or folder, if they are not below `data`.
        folder: for a split, and annotations in a format of the toolbox.
        names: of the classes; default: from files.

    Raises:
        ValueError: if the config is of another toolbox, or there is no such file or folder.
        DataError: if no layout fits, or the data does not fit the config.
    """
    scope = cfg.get('default_scope')
    if scope not in ('mmdet', 'mmseg'):
        raise ValueError(f'--data takes a config of mmdet or mmseg, got default_scope={scope!r}')
    for argument, given in (('--data', data), ('--annotations', annotations)):
        if given is not None and not Path(given).exists():
            raise ValueError(f'{argument}: there is no {str(given)!r}')
    outputs = Outputs(folder)
    outputs.folder.mkdir(parents=True, exist_ok=True)
    mark_folder(outputs.folder)
    with FileLock(outputs.folder / '.lock'):  # each process of a distributed run writes the same
        return _find(cfg, Path(data), None if annotations is None else Path(annotations), outputs, names)


def _find(
    cfg: Config, data: Path, annotations: Optional[Path], outputs: Outputs, names: Optional[Sequence[str]]
) -> OwnData:
    folder = _list(data, annotations, outputs, names)
    left_out = f'; not read, as results of earlier commands: {", ".join(folder.results)}' if folder.results else ''
    if not folder.pictures:
        raise DataError(f'there is no picture below {folder.root}, which has {count_suffixes(folder.files)}{left_out}')
    with_masks = uses_masks(cfg) or 'LoadPanopticAnnotations' in str(cfg.train_dataloader)
    is_detector = cfg.default_scope == 'mmdet'
    own, error = _first(OBJECTS if is_detector else LABELS, folder, with_masks)
    if own:
        if error:
            own.lines.append(line('left out', str(error)))
        if folder.results:
            own.lines.append(line('not read', f'results of earlier commands: {", ".join(folder.results)}'))
        return own
    if error:
        raise error
    other, error = _first(LABELS if is_detector else OBJECTS, folder, False)
    if is_detector and (other or error):
        raise DataError(
            f'{folder.root} has labels of pixels, which do not say where one object ends and another begins: they are '
            'for a config of mmseg'
        )
    if other:
        raise DataError(
            f'{folder.root} has objects, as boxes or outlines, and a config of mmseg takes a PNG of labels for each '
            f'picture. {CONVERTERS}'
        )
    if error:
        raise error
    raise DataError(
        f'no annotations were found in {folder.ann_root}: looked for {LAYOUTS}; found '
        f'{count_suffixes(folder.ann_files)} in {list_folders(folder.ann_files)}{left_out}. {CONVERTERS}'
    )


def _list(data: Path, annotations: Optional[Path], outputs: Outputs, names: Optional[Sequence[str]]) -> DataFolder:
    one_file = next((path for path in (annotations, data) if path is not None and not path.is_dir()), None)
    if one_file is not None and one_file.suffix.lower() not in ('.json', '.yaml', '.yml'):
        raise DataError(f"{one_file} is no annotation file: it takes a COCO JSON, or YOLO's data.yaml, or a folder")
    root = data if data.is_dir() else data.parent
    files, results = list_files(root)
    if not data.is_dir() and not any(is_picture(path) for path in files):
        root = root.parent  # of annotations/instances_train.json
        files, results = list_files(root)
    results = [name for name in results if (root / name).resolve() != outputs.folder.resolve()]  # of this run
    ann_root, ann_files = root, files
    if annotations is not None:
        ann_root = annotations if annotations.is_dir() else annotations.parent
        ann_files, ann_results = list_files(ann_root)
        results += ann_results
    return DataFolder(root, files, ann_root, ann_files, outputs, results, one_file, names)


def _first(
    finders: Sequence[Finder], folder: DataFolder, with_masks: bool
) -> tuple[Optional[OwnData], Optional[DataError]]:
    """Return the first recognised layout, and the first error: a broken file may be beside a whole layout."""
    first_error = None
    for find in finders:
        try:
            own = find(folder, with_masks)
        except DataError as error:
            first_error = first_error or error
        else:
            if own:
                return own, first_error
    return None, first_error
