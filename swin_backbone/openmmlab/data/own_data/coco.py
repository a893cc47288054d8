"""COCO JSON: annotation files for training and validation, and the folder of their pictures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from ...config.paths import read_file
from ...errors import DataError
from ..annotations import MOST_JSON, check_annotations, require_annotations
from .folder import DataFolder, OwnData, class_line, line, list_folders, require_distinct
from .splits import folder_split, read_split_lists, split_of, split_pictures, train_and_val

SAMPLE = 50  # pictures of an annotation file whose place is looked up
MAX_JSONS = 40  # that are looked into


def find_coco(folder: DataFolder, with_masks: bool, one_file: Optional[Path]) -> Optional[OwnData]:
    """Recognise annotation files in COCO's format. A missing file for validation is split off the file for training."""
    if one_file is not None and one_file.suffix.lower() != '.json':
        return None
    paths = _annotation_files(folder, one_file)
    if not paths:
        return None
    contents = {path: _read(path) for path in paths}
    train = paths[0]
    names = [str(category['name']) for category in contents[train]['categories']]
    require_distinct(names, train)
    require_masks(train, contents[train], with_masks)
    images = {path: _picture_folder(folder, path, contents[path]) for path in paths}
    if len(paths) > 1:
        splits = {split: (path.absolute(), images[path], len(contents[path]['images']))
                  for split, path in zip(('train', 'val'), paths)}  # fmt: skip
        return describe_boxes(folder, 'COCO JSON', splits, names, [])
    require_annotations(train, 'COCO', False, beyond=())  # a split would hide objects of unknown pictures
    parts, lines = _split(folder, contents[train], images[train])
    splits = {split: (folder.write(f'{split}.json', data), images[train], len(data['images']))
              for split, data in parts.items()}  # fmt: skip
    lines.append(line('written', f'{folder.outputs.folder}/{{train,val}}.json'))
    return describe_boxes(folder, 'COCO JSON', splits, names, lines)


def require_masks(path: Path, data: dict[str, Any], with_masks: bool) -> None:
    """Raise DataError if a config of masks meets annotations without outlines."""
    if with_masks and not any(annotation.get('segmentation') for annotation in data['annotations']):
        raise DataError(
            f'the config trains on masks of objects, and {path} has boxes alone: take a config without masks, as '
            'faster_rcnn or retinanet, or annotations with outlines'
        )


def describe_boxes(
    folder: DataFolder,
    layout: str,
    splits: Mapping[str, tuple[Path, str, int]],
    classes: Sequence[str],
    lines: Sequence[str],
) -> OwnData:
    """Return the settings and the report of data in COCO's format.

    Args:
        splits: annotation file, folder of pictures, and number of pictures of 'train' and 'val'.
        lines: of the report, at its end.
    """
    own: dict[str, Any] = dict(root=str(folder.root))
    head = [f'data in {folder.root}: {layout}']
    for split, (path, images, number) in splits.items():
        own[split] = dict(images=images, annotations=str(path))
        shown = path.relative_to(folder.root.absolute()) if folder.root.absolute() in path.parents else path
        head.append(line(split, f'{number} pictures in {images}', str(shown)))
    return OwnData(own, [*head, class_line(classes), *lines])


def _annotation_files(folder: DataFolder, one_file: Optional[Path]) -> list[Path]:
    """Return the files for training and validation, or a single file to split, or no file."""
    candidates = sorted(
        folder.with_suffix('.json'), key=lambda path: (split_of(Path(path.name)) is None, len(path.parts), path)
    )
    if one_file is not None:
        split = split_of(Path(one_file.name))
        beside = [path for path in candidates if split and path.name == one_file.name.replace(split, 'val', 1)]
        check_annotations(one_file, 'COCO', False)  # raises an error for another format
        return [one_file, *(beside[:1] if split == 'train' and beside and beside[0] != one_file else [])]
    errors: list[DataError] = []
    by_split: dict[Optional[str], list[Path]] = {}
    named = [path for path in candidates if 'instances' in path.stem]
    for path in (named or candidates)[:MAX_JSONS]:
        try:
            annotated = check_annotations(path, 'COCO', False)
        except DataError as error:
            errors.append(error)
            continue
        if annotated.images:
            by_split.setdefault(split_of(path.relative_to(folder.ann_root)), []).append(path)
        elif annotated.errors:
            errors.append(DataError(f'{path} has {annotated.errors.sentences()[0]}'))
    if not by_split and errors:
        raise errors[0]
    train, val = train_and_val(by_split)
    for phase, paths in (('training', train), ('validation', val)):
        if len(paths) > 1:
            shown = ', '.join(str(path.relative_to(folder.ann_root)) for path in paths[:5])
            raise DataError(
                f'{folder.ann_root} has several annotation files for {phase}: {shown}; name one: --data FILE'
            )
    return [*train, *val]


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a file that `check_annotations` accepts."""
    data: dict[str, Any] = json.loads(read_file(path, MOST_JSON))
    data.setdefault('annotations', [])
    if any('segments_info' in annotation for annotation in data['annotations']):
        raise DataError(
            f'{path} is panoptic, which --data does not take: a config of mmdet takes its objects, as '
            'instances_*.json, and one of mmseg a PNG of labels for each picture. panopticapi writes both: '
            'panoptic2detection_coco_format.py, panoptic2semantic_segmentation.py'
        )
    return data


def _split(folder: DataFolder, data: dict[str, Any], images: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Split a file for training and validation, with objects numbered from 1, and return the parts and lines."""
    by_picture: dict[Path, list[dict[str, Any]]] = {}
    for image in data['images']:
        by_picture.setdefault(Path(images, image['file_name']), []).append(image)
    split = split_pictures(list(by_picture), *read_split_lists(folder, list(by_picture)))
    parts = {}
    for phase, pictures in (('train', split.train), ('val', split.val)):
        chosen = [image for picture in pictures for image in by_picture[picture]]
        ids = {image['id'] for image in chosen}
        objects = [annotation for annotation in data['annotations'] if annotation.get('image_id') in ids]
        objects = [dict(annotation, id=number) for number, annotation in enumerate(objects, 1)]
        parts[phase] = {**data, 'images': chosen, 'annotations': objects}
    return parts, split.lines


def _picture_folder(folder: DataFolder, path: Path, data: dict[str, Any]) -> str:
    """Return the folder, relative to the root, of the pictures of an annotation file."""
    names = [image['file_name'] for image in data['images']]
    names = names[:: max(1, len(names) // SAMPLE)]
    parents = {parent for picture in folder.pictures for parent in picture.parents}
    split = split_of(Path(path.name)) or split_of(path.relative_to(folder.ann_root))

    def rank(parent: Path) -> tuple[int, bool, bool, int]:
        number = sum((folder.root / parent / name).is_file() for name in names)
        is_of_split = folder_split(parent / '-') == split
        return number, is_of_split, folder.root / parent == path.parent, -len(parent.parts)

    best = max(sorted(parents), key=rank)
    if not rank(best)[0]:
        raise DataError(
            f'{path} names {len(data["images"])} pictures, as {names[0]!r}, and none of those looked for is below '
            f'{folder.root}, which has pictures in {list_folders(folder.pictures)}'
        )
    return best.as_posix()
