"""Boxes and masks of objects, in COCO's format, YOLO's or Pascal VOC's: which files are for training and validation."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional

import yaml

from ...config.files import PlainLoader
from ...errors import DataError
from ..annotations import check_annotations
from .files import class_names, folder_split, require_distinct, split_by_chance, split_of, train_and_val
from .place import SPLIT_SAID, Found, Place, folders_of, line_of, names_shown
from .to_coco import Annotated, coco_of, is_voc, is_yolo, read_voc, read_yolo, voc_classes, yolo_classes

SAMPLE = 50  # pictures of an annotation file that are looked for
MAX_JSONS = 40  # that are looked into


# --- COCO -------------------------------------------------------------------------------------------------------------


def find_coco(place: Place, with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    if one_file is not None and one_file.suffix.lower() != '.json':
        return None
    train, val = _coco_files(place, one_file)
    if train is None:
        return None
    read = {path: read_json(path) for path in (train, val) if path is not None}
    for path, data in read.items():
        _refuse_panoptic(path, data)
    notes = []
    if val is None:
        train_data, val_data = _split_coco(read[train])
        images = _picture_folder(place, train, read[train])
        splits = dict(
            train=(place.write('train.json', train_data), images, len(train_data['images'])),
            val=(place.write('val.json', val_data), images, len(val_data['images'])),
        )
        notes.append(line_of('split', f'{SPLIT_SAID}: {place.outputs.folder}/{{train,val}}.json'))
    else:
        splits = {
            split: (path.absolute(), _picture_folder(place, path, read[path]), len(read[path]['images']))
            for split, path in (('train', train), ('val', val))
        }
    _require_masks(train, read[train], with_masks)
    return _boxes_found(place, 'COCO JSON', splits, category_names(train, read[train]), notes)


def _coco_files(place: Place, one_file: Optional[Path]) -> tuple[Optional[Path], Optional[Path]]:
    """The annotation files for training and validation; the second is None where a split has to be made."""
    candidates = sorted(
        place.of_suffix('.json'), key=lambda path: (split_of(Path(path.name)) is None, len(path.parts), path)
    )
    named = [path for path in candidates if 'instances' in path.stem]
    if one_file is not None:
        split = split_of(Path(one_file.name))
        beside = [path for path in candidates if split and path.name == one_file.name.replace(split, 'val', 1)]
        val = beside[0] if split == 'train' and beside and beside[0] != one_file else None
        check_annotations(one_file, 'COCO', False)  # raises, if it is none
        return one_file, val
    errors: list[DataError] = []
    by_split: dict[Optional[str], list[Path]] = {}
    for path in (named or candidates)[:MAX_JSONS]:
        try:
            annotated = check_annotations(path, 'COCO', False)
        except DataError as error:
            errors.append(error)
            continue
        if not annotated.images and annotated.errors:
            errors.append(DataError(f'{path} has {annotated.errors.sentences()[0]}'))
        if annotated.images:
            by_split.setdefault(split_of(path.relative_to(place.ann_root)), []).append(path)
    if not by_split:
        if named or (errors and len(candidates) == len(errors) <= 2):
            raise errors[0]
        if candidates and _is_labelme(candidates[-1]):
            raise DataError(
                f"{candidates[-1]} is labelme's, a file a picture: export the annotations in COCO's format, or YOLO's"
            )
        return None, None
    train, val_files = train_and_val(by_split)
    for split, several in (('training', train), ('validation', val_files)):
        if len(several) > 1:
            shown = ', '.join(str(path.relative_to(place.ann_root)) for path in several[:5])
            where = place.ann_root
            raise DataError(f'{where} has several annotation files for {split}: {shown}; name one: --data FILE')
    return train[0], val_files[0] if val_files else None


def read_json(path: Path) -> dict[str, Any]:
    """A file that `check_annotations` has read."""
    with open(path, encoding='utf-8') as file:
        data: dict[str, Any] = json.load(file)
    data.setdefault('annotations', [])
    return data


def _refuse_panoptic(path: Path, data: dict[str, Any]) -> None:
    if any('segments_info' in annotation for annotation in data['annotations'] if isinstance(annotation, dict)):
        raise DataError(
            f'{path} is panoptic, which --data does not take: a config of mmdet takes its objects, as '
            'instances_*.json, and one of mmseg a PNG of labels for each picture. panopticapi writes both: '
            'panoptic2detection_coco_format.py, panoptic2semantic_segmentation.py'
        )


def _is_labelme(path: Path) -> bool:
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and 'shapes' in data and 'imagePath' in data


def category_names(path: Path, data: dict[str, Any]) -> list[str]:
    names = [str(category.get('name')) for category in data['categories'] if isinstance(category, dict)]
    require_distinct(names, path)
    return names


def _split_coco(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The annotations of one file as two."""
    train_names, val_names = split_by_chance(image['file_name'] for image in data['images'])
    parts = []
    for names in (set(train_names), set(val_names)):
        images = [image for image in data['images'] if image['file_name'] in names]
        ids = {image['id'] for image in images}
        annotations = [annotation for annotation in data['annotations'] if annotation.get('image_id') in ids]
        parts.append({**data, 'images': images, 'annotations': annotations})
    return parts[0], parts[1]


def _picture_folder(place: Place, path: Path, data: dict[str, Any]) -> str:
    """The folder, relative to the root, in which the pictures are that an annotation file names."""
    names = [image['file_name'] for image in data['images']]
    names = names[:: max(1, len(names) // SAMPLE)]
    parents = {parent for picture in place.pictures for parent in picture.parents}
    split = split_of(Path(path.name)) or split_of(path.relative_to(place.ann_root))

    def fits(folder: Path) -> tuple[int, bool, bool, int]:
        there = sum((place.root / folder / name).is_file() for name in names)
        return (
            there,
            folder_split(folder / '-') == split,
            place.root / folder == path.parent,
            -len(folder.parts),
        )

    best = max(sorted(parents), key=fits)
    if not fits(best)[0]:
        raise DataError(
            f'{path} names {len(data["images"])} pictures, as {names[0]!r}, and none of those looked for is below '
            f'{place.root}, which has pictures in {folders_of(place.pictures)}'
        )
    return best.as_posix()


def _require_masks(path: Path, data: dict[str, Any], with_masks: bool) -> None:
    if with_masks and not any(isinstance(a, dict) and a.get('segmentation') for a in data['annotations']):
        raise DataError(
            f'the config trains on masks of objects, and {path} has boxes alone: take a config without masks, as '
            'faster_rcnn or retinanet, or annotations with outlines'
        )


def _boxes_found(
    place: Place,
    layout: str,
    splits: dict[str, tuple[Path, str, int]],
    classes: Sequence[str],
    notes: Sequence[str],
) -> Found:
    own: dict[str, Any] = dict(root=str(place.root))
    lines = [f'data in {place.root}: {layout}']
    for split, (path, images, number) in splits.items():
        own[split] = dict(images=images, annotations=str(path))
        shown = path.relative_to(place.root.absolute()) if place.root.absolute() in path.parents else path
        lines.append(line_of(split, f'{number} pictures in {images}', str(shown)))
    return Found(own, [*lines, line_of('classes', names_shown(classes)), *notes])


# --- YOLO and VOC: made into COCO's -----------------------------------------------------------------------------------


def find_yolo(place: Place, with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    if one_file is not None and one_file.suffix.lower() == '.json':
        return None
    settings, names = _yolo_settings(place, one_file)
    texts = {
        path.with_suffix('.txt'): place.ann_root / path for path in place.ann_files if path.suffix.lower() == '.txt'
    }
    annotated = [Annotated(picture, _yolo_text(place, picture, texts)) for picture in place.pictures]
    files = [one.file for one in annotated if one.file is not None]
    if not any(map(is_yolo, files[:SAMPLE])):
        return None
    source = ''
    if names is None:
        folders = (place.root, place.ann_root, *sorted({file.parent for file in files}))
        names, path = class_names(folders)
        source = f'from {path}' if path else 'called by their numbers: no data.yaml and no classes.txt has names'
    names = names or [f'class {number}' for number in range(yolo_classes(files))]
    by_split = _yolo_splits(place, settings, annotated)
    read = partial(read_yolo, classes=names, points=_yolo_points(settings))
    return _converted(place, 'YOLO', by_split, names, source, read, with_masks)


def _yolo_settings(place: Place, one_file: Optional[Path]) -> tuple[dict[str, Any], Optional[list[str]]]:
    """A data.yaml, and the names of the classes in it; none where there is no such file."""
    paths = [one_file] if one_file is not None else place.of_suffix('.yaml', '.yml')
    for path in sorted(paths, key=lambda path: (path.stem != 'data', path)):
        try:
            with open(path, encoding='utf-8') as file:
                settings = yaml.load(file, Loader=PlainLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            if one_file is None and path.stem != 'data':  # it says something else than what the data are
                continue
            raise DataError(f'{path} cannot be read: {" ".join(str(error).split())}') from error
        names = settings.get('names') if isinstance(settings, dict) else None
        if isinstance(names, dict):
            if sorted(names) != list(range(len(names))):
                raise DataError(f'{path}: names takes names by numbers that count from 0, got {sorted(names)}')
            names = [names[number] for number in range(len(names))]
        if isinstance(names, list):
            names = [str(name) for name in names]
            require_distinct(names, f'{path}: names')
            return settings, names
        if one_file is not None:
            raise DataError(f"{path} is no data.yaml of YOLO's: it has no list of names")
    return {}, None


def _yolo_points(settings: dict[str, Any]) -> int:
    """How many numbers of points are behind each box: `kpt_shape` says how many points of how many numbers."""
    shape = settings.get('kpt_shape', ())
    if not isinstance(shape, (list, tuple)) or not all(type(number) is int and number > 0 for number in shape):
        raise DataError(f'kpt_shape of data.yaml takes two whole numbers from 1, got {shape!r:.80}')
    return math.prod(shape) if shape else 0


def _yolo_text(place: Place, picture: Path, texts: dict[Path, Path]) -> Optional[Path]:
    """The text file of a picture: in labels/ where it is in images/, else beside it; None where it has none."""
    parts = list(picture.parts)
    found = [picture.with_suffix('.txt')]
    for index in range(len(parts) - 2, -1, -1):
        if parts[index].lower() == 'images':
            found.insert(0, Path(*parts[:index], 'labels', *parts[index + 1 :]).with_suffix('.txt'))
            found.append(Path(*parts[:index], *parts[index + 1 :]).with_suffix('.txt'))  # of an --annotations folder
            break
    return next((texts[path] for path in found if path in texts), None)


def _yolo_splits(
    place: Place, settings: dict[str, Any], annotated: Sequence[Annotated]
) -> dict[Optional[str], list[Annotated]]:
    """As data.yaml says, else as the folders are called."""
    said: dict[str, str] = {}
    named = ''  # the first picture or folder of them
    base = Path(str(settings.get('path') or ''))
    for name in ('train', 'val', 'test'):
        given = settings.get(name)
        for entry in given if isinstance(given, list) else [given] if isinstance(given, str) else []:
            # Exports of Roboflow say ../train/images, from nowhere that is there
            tried = [base / str(entry), Path(str(entry)), Path(str(entry).replace('../', ''))]
            path = next((place.root / one for one in tried if (place.root / one).exists()), None)
            if path is None:
                continue
            listed = path.read_text(encoding='utf-8').split('\n') if path.is_file() else []
            for line in filter(None, map(str.strip, listed)):
                said[str((path.parent / line).resolve())] = name
                named = named or line
            if path.is_dir():
                said[str(path.resolve())] = name
                named = named or str(entry)
    by_split: dict[Optional[str], list[Annotated]] = {}
    for one in annotated:
        path = (place.root / one.picture).resolve()
        split: Optional[str] = next((said[str(p)] for p in (path, *path.parents) if str(p) in said), None)
        if split is None and not said:
            split = folder_split(one.picture)
        if split is not None or not said:
            by_split.setdefault(split, []).append(one)
    if not by_split:
        raise DataError(
            f'none of the {len(annotated)} pictures below {place.root} is among those that train and val of data.yaml '
            f'name, as {named!r}'
        )
    return by_split


def find_voc(place: Place, with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    files = place.of_suffix('.xml') if one_file is None else []
    if not files or not is_voc(files[0]):
        return None
    by_stem: dict[str, list[Path]] = {}
    for picture in place.pictures:
        by_stem.setdefault(picture.stem, []).append(picture)
    listed = _voc_lists(place)
    by_split: dict[Optional[str], list[Annotated]] = {}
    for file in files:
        inside = file.relative_to(place.ann_root)
        split = folder_split(inside)
        found = by_stem.get(file.stem, [])
        found = [picture for picture in found if folder_split(picture) == split] or found
        found = [picture for picture in found if picture.parent == inside.parent] or found
        if len(found) != 1:
            several = f'{len(found)} pictures of its name: {", ".join(map(str, found[:3]))}' if found else 'no picture'
            raise DataError(f'{file} belongs to a picture of its name, and below {place.root} there is {several}')
        if listed:
            for name, stems in listed.items():
                if file.stem in stems:
                    by_split.setdefault(name, []).append(Annotated(found[0], file))
        else:
            by_split.setdefault(split, []).append(Annotated(found[0], file))
    names, path = class_names((place.root, place.ann_root))
    source = f'from {path}' if path else 'in the order of the alphabet: there is no classes.txt'
    chosen = [one.file for half in train_and_val(by_split) for one in half if one.file is not None]
    names = names or voc_classes(chosen)
    if not names:
        raise DataError(f'none of the {len(files)} XML files in {place.ann_root} has an object')
    return _converted(place, 'Pascal VOC XML', by_split, names, source, read_voc, with_masks)


def _voc_lists(place: Place) -> dict[str, set[str]]:
    """The names in ImageSets/Main/train.txt, val.txt and test.txt, by the split."""
    found = {}
    for path in place.of_suffix('.txt'):
        if path.parent.name == 'Main' and path.stem in ('train', 'val', 'test'):
            lines = path.read_text(encoding='utf-8').splitlines()
            found[path.stem] = {line.split()[0] for line in lines if line.strip()}
    return found if 'train' in found else {}


def _converted(
    place: Place,
    layout: str,
    by_split: dict[Optional[str], list[Annotated]],
    classes: Sequence[str],
    source: str,
    read: Callable[..., Any],
    with_masks: bool,
) -> Found:
    """Annotations in another format, written in COCO's."""
    train, val = train_and_val(by_split)
    notes = []
    if not val:
        by_name = {one.picture.as_posix(): one for one in train}
        train_names, val_names = split_by_chance(by_name)
        train, val = [by_name[name] for name in train_names], [by_name[name] for name in val_names]
        notes.append(line_of('split', SPLIT_SAID))
    splits = {}
    for split, annotated in (('train', train), ('val', val)):
        data = coco_of(place.root, annotated, classes, read)
        if split == 'train':
            _require_masks(place.ann_root, data, with_masks)
        splits[split] = (place.write(f'{split}.json', data), '.', len(data['images']))
    notes.append(line_of('written', f"{place.outputs.folder}/{{train,val}}.json, the same in COCO's format"))
    found = _boxes_found(place, layout, splits, classes, notes)
    if source:
        found.lines.insert(-len(notes), line_of('', f'{source}'))
    return found
