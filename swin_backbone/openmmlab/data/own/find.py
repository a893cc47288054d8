"""Find out what a folder of pictures and annotations holds, and say it as `own_data`, which a config is filled from.

Four layouts are known: COCO JSON, YOLO's text files, Pascal VOC's XML, and labels as pictures. What mmdet and mmseg
cannot read as it is, and a split into training and validation where there is none, is written to a folder of the run.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional, Union

from filelock import FileLock
from mmengine.config import Config

from ....outputs import Outputs, mark_folder
from ...errors import DataError
from ..annotations import uses_masks
from .boxes import find_coco, find_voc, find_yolo
from .files import files_below
from .label_files import pairs_of
from .labels import find_areas, find_labels
from .place import Found, Place, folders_of, has_pictures, kinds_of, line_of

LOOKED_FOR = (
    'a JSON in the format of COCO, text files of YOLO, XML of Pascal VOC, or a PNG of labels for each picture, in '
    'folders called labels, masks or annotations'
)
Finder = Callable[[Place, bool, Optional[Path]], Optional[Found]]


def find_data(
    cfg: Config, data: Union[str, Path], annotations: Union[str, Path, None], folder: Union[str, Path]
) -> Found:
    """Find pictures and annotations that a config of mmdet or mmseg can be trained on.

    Args:
        data: a folder, a COCO JSON, or YOLO's data.yaml.
        annotations: a file or folder, where they are not below `data`.
        folder: for what is written: a split, and annotations in a format that the toolbox reads.

    Raises:
        ValueError: if the config is of another toolbox, or there is no such file or folder.
        DataError: if nothing there is understood, or it does not fit the config; what was looked for, what was found.
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
    with FileLock(outputs.folder / '.lock'):  # each process of a distributed run looks, and writes the same
        return _find(cfg, scope, Path(data), None if annotations is None else Path(annotations), outputs)


def _find(cfg: Config, scope: str, data: Path, annotations: Optional[Path], outputs: Outputs) -> Found:
    one_file = next((path for path in (annotations, data) if path is not None and path.is_file()), None)
    if one_file is not None and one_file.suffix.lower() not in ('.json', '.yaml', '.yml'):
        raise DataError(f"{one_file} is no annotation file: it takes a COCO JSON, or YOLO's data.yaml, or a folder")
    root = data if data.is_dir() else data.parent
    if data.is_file() and not has_pictures(root):
        root = root.parent  # annotations/instances_train.json
    ann_root = root if annotations is None else annotations if annotations.is_dir() else annotations.parent
    files, results = files_below(root)
    ann_files, ann_results = (files, []) if ann_root == root else files_below(ann_root)
    place = Place(root, files, ann_root, ann_files, outputs, [*results, *ann_results])
    left_out = f'; not read, as results of earlier commands: {", ".join(place.results)}' if place.results else ''
    if not place.pictures:
        raise DataError(f'there is no picture below {root}, which has {kinds_of(place.files)}{left_out}')
    finders: Sequence[Finder] = (find_labels, find_areas) if scope == 'mmseg' else (find_coco, find_yolo, find_voc)
    for find in finders:
        if one_file is not None and find is find_labels:
            continue
        found = find(place, uses_masks(cfg) or 'LoadPanopticAnnotations' in str(cfg.train_dataloader), one_file)
        if found:
            if place.results:
                found.lines.append(line_of('not read', f'results of earlier commands: {", ".join(place.results)}'))
            return found
    pairs = pairs_of(place.pictures) if scope == 'mmdet' else []
    if pairs:
        raise DataError(
            f'{root} has labels of pixels, as {pairs[0].label}, which do not say where one object ends and another '
            'begins: they are for a config of mmseg'
        )
    if scope == 'mmseg' and (find_yolo(place, False, None) or find_voc(place, False, None)):
        raise DataError(f'the annotations of {root} are boxes, which are for a config of mmdet without masks')
    raise DataError(
        f'no annotations were found in {ann_root}: looked for {LOOKED_FOR}; found {kinds_of(place.ann_files)} in '
        f'{folders_of(place.ann_files)}{left_out}'
    )
