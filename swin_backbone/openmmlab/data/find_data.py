"""Find out what a folder of pictures and annotations holds, and say it as `own_data`, which a config is filled from.

Four layouts are known: COCO JSON, YOLO's text files, Pascal VOC's XML, and labels as pictures. What mmdet and mmseg
cannot read as it is, and a split into training and validation where there is none, is written to a folder of the run.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import yaml
from filelock import FileLock
from mmengine.config import Config

from ...outputs import Outputs
from ..config.files import PlainLoader
from ..errors import DataError
from .annotations import check_annotations, uses_masks
from .check_labels import LabelRule, read_label
from .files import (
    class_names,
    files_below,
    folder_split,
    require_distinct,
    split_by_chance,
    split_of,
    train_and_val,
)
from .label_files import (
    LABELS,
    Classes,
    Pair,
    classes_of,
    is_binary,
    pairs_of,
    pictures_in,
    prefixes_of,
    read_labels,
)
from .media import encode_picture, picture_size
from .to_coco import Annotated, coco_of, is_voc, is_yolo, read_voc, read_yolo, voc_classes, yolo_classes

SAMPLE = 50  # pictures of an annotation file that are looked for
MAX_JSONS = 40  # that are looked into
SPLIT_SAID = 'a fifth of the pictures is held out for validation, the same ones each time'
LOOKED_FOR = (
    'a JSON in the format of COCO, text files of YOLO, XML of Pascal VOC, or a PNG of labels for each picture, in '
    'folders called labels, masks or annotations'
)


class Found(NamedTuple):
    """What was found.

    Args:
        own_data: as a config has it; see own_data.py.
        lines: what to tell the user.
    """

    own_data: dict[str, Any]
    lines: list[str]


class _Place(NamedTuple):
    """Where to look, what is there, and where what is made of it goes."""

    root: Path
    files: list[Path]  # below root, relative to it
    ann_root: Path
    ann_files: list[Path]  # below ann_root, relative to it
    outputs: Outputs

    @property
    def pictures(self) -> list[Path]:
        return pictures_in(self.files)

    def of_suffix(self, *suffixes: str) -> list[Path]:
        """Files of annotations, with their whole path."""
        return [self.ann_root / path for path in self.ann_files if path.suffix.lower() in suffixes]

    def write(self, name: str, data: Any) -> Path:
        path = self.outputs.folder / name
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        if not (path.is_file() and path.read_bytes() == content):
            self.outputs.write(path, content)
        return path.absolute()


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
    with FileLock(outputs.folder / '.lock'):  # each process of a distributed run looks, and writes the same
        return _find(cfg, scope, Path(data), annotations and Path(annotations), outputs)


def _find(cfg: Config, scope: str, data: Path, annotations: Optional[Path], outputs: Outputs) -> Found:
    one_file = next((path for path in (annotations, data) if path is not None and path.is_file()), None)
    if one_file is not None and one_file.suffix.lower() not in ('.json', '.yaml', '.yml'):
        raise DataError(f"{one_file} is no annotation file: it takes a COCO JSON, or YOLO's data.yaml, or a folder")
    root = data if data.is_dir() else data.parent
    if data.is_file() and not _has_pictures(root):
        root = root.parent  # annotations/instances_train.json
    ann_root = root if annotations is None else annotations if annotations.is_dir() else annotations.parent
    files = files_below(root)
    place = _Place(root, files, ann_root, files if ann_root == root else files_below(ann_root), outputs)
    if not place.pictures:
        raise DataError(f'there is no picture below {root}, which has {_kinds(place.files)}')
    finders: Sequence[Callable[..., Optional[Found]]]
    finders = (_find_labels, _find_areas) if scope == 'mmseg' else (_find_coco, _find_yolo, _find_voc)
    for find in finders:
        if one_file is not None and find is _find_labels:
            continue
        found = find(place, uses_masks(cfg) or 'LoadPanopticAnnotations' in str(cfg.train_dataloader), one_file)
        if found:
            return found
    pairs = pairs_of(place.pictures) if scope == 'mmdet' else []
    if pairs:
        raise DataError(
            f'{root} has labels of pixels, as {pairs[0].label}, which do not say where one object ends and another '
            'begins: they are for a config of mmseg'
        )
    if scope == 'mmseg' and next(filter(None, (find(place, False, None) for find in (_find_yolo, _find_voc))), None):
        raise DataError(f'the annotations of {root} are boxes, which are for a config of mmdet without masks')
    raise DataError(
        f'no annotations were found in {ann_root}: looked for {LOOKED_FOR}; found {_kinds(place.ann_files)} in '
        f'{_folders(place.ann_files)}'
    )


def _has_pictures(root: Path) -> bool:
    return bool(pictures_in(files_below(root)))


def _kinds(files: Sequence[Path]) -> str:
    """How many files of each suffix there are."""
    suffixes = sorted({path.suffix for path in files}, key=lambda s: -sum(path.suffix == s for path in files))
    return ', '.join(f'{sum(p.suffix == s for p in files)} {s or "without suffix"}' for s in suffixes[:5]) or 'nothing'


def _folders(files: Sequence[Path]) -> str:
    folders = sorted({str(path.parent) for path in files})
    return ', '.join(folders[:6]) + (f' and {len(folders) - 6} more folders' if len(folders) > 6 else '')


def _colon(name: str, *said: str) -> str:
    return f'  {name:<12}' + ', '.join(filter(None, said))


def _shown(names: Sequence[str]) -> str:
    return f'{len(names)}: ' + ', '.join(names[:12]) + (', ...' if len(names) > 12 else '')


# --- COCO -------------------------------------------------------------------------------------------------------------


def _find_coco(place: _Place, with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    if one_file is not None and one_file.suffix.lower() != '.json':
        return None
    train, val = _coco_files(place, one_file)
    if train is None:
        return None
    read = {path: _read_json(path) for path in (train, val) if path is not None}
    notes = []
    if val is None:
        train_data, val_data = _split_coco(read[train])
        images = _picture_folder(place, train, read[train])
        splits = dict(
            train=(place.write('train.json', train_data), images, len(train_data['images'])),
            val=(place.write('val.json', val_data), images, len(val_data['images'])),
        )
        notes.append(_colon('split', f'{SPLIT_SAID}: {place.outputs.folder}/{{train,val}}.json'))
    else:
        splits = {
            split: (path.absolute(), _picture_folder(place, path, read[path]), len(read[path]['images']))
            for split, path in (('train', train), ('val', val))
        }
    _require_masks(train, read[train], with_masks)
    return _boxes_found(place, 'COCO JSON', splits, _category_names(train, read[train]), notes)


def _coco_files(place: _Place, one_file: Optional[Path]) -> tuple[Optional[Path], Optional[Path]]:
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


def _read_json(path: Path) -> dict[str, Any]:
    """A file that `check_annotations` has read."""
    with open(path, encoding='utf-8') as file:
        data: dict[str, Any] = json.load(file)
    data.setdefault('annotations', [])
    return data


def _is_labelme(path: Path) -> bool:
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and 'shapes' in data and 'imagePath' in data


def _category_names(path: Path, data: dict[str, Any]) -> list[str]:
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


def _picture_folder(place: _Place, path: Path, data: dict[str, Any]) -> str:
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
            f'{place.root}, which has pictures in {_folders(place.pictures)}'
        )
    return best.as_posix()


def _require_masks(path: Path, data: dict[str, Any], with_masks: bool) -> None:
    if with_masks and not any(isinstance(a, dict) and a.get('segmentation') for a in data['annotations']):
        raise DataError(
            f'the config trains on masks of objects, and {path} has boxes alone: take a config without masks, as '
            'faster_rcnn or retinanet, or annotations with outlines'
        )


def _boxes_found(
    place: _Place,
    layout: str,
    splits: dict[str, tuple[Path, str, int]],
    classes: Sequence[str],
    notes: Sequence[str],
) -> Found:
    own = dict(root=str(place.root))
    lines = [f'data in {place.root}: {layout}']
    for split, (path, images, number) in splits.items():
        own[split] = dict(images=images, annotations=str(path))
        shown = path.relative_to(place.root.absolute()) if place.root.absolute() in path.parents else path
        lines.append(_colon(split, f'{number} pictures in {images}', str(shown)))
    return Found(own, [*lines, _colon('classes', _shown(classes)), *notes])


# --- YOLO and VOC: made into COCO's -----------------------------------------------------------------------------------


def _find_yolo(place: _Place, with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    if one_file is not None and one_file.suffix.lower() == '.json':
        return None
    settings, names = _yolo_settings(place, one_file)
    texts = {path: place.ann_root / path for path in place.ann_files if path.suffix.lower() == '.txt'}
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
    read = partial(read_yolo, classes=names)
    return _converted(place, 'YOLO', by_split, names, source, read, with_masks)


def _yolo_settings(place: _Place, one_file: Optional[Path]) -> tuple[dict[str, Any], Optional[list[str]]]:
    """A data.yaml, and the names of the classes in it; none where there is no such file."""
    paths = [one_file] if one_file is not None else sorted(p for p in place.of_suffix('.yaml', '.yml'))
    for path in paths:
        try:
            with open(path, encoding='utf-8') as file:
                settings = yaml.load(file, Loader=PlainLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
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


def _yolo_text(place: _Place, picture: Path, texts: dict[Path, Path]) -> Optional[Path]:
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
    place: _Place, settings: dict[str, Any], annotated: Sequence[Annotated]
) -> dict[Optional[str], list[Annotated]]:
    """As data.yaml says, else as the folders are called."""
    said: dict[str, str] = {}
    base = Path(str(settings.get('path') or ''))
    for split in ('train', 'val', 'test'):
        given = settings.get(split)
        for entry in given if isinstance(given, list) else [given] if isinstance(given, str) else []:
            # Exports of Roboflow say ../train/images, from nowhere that is there
            tried = [base / str(entry), Path(str(entry)), Path(str(entry).replace('../', ''))]
            path = next((place.root / one for one in tried if (place.root / one).exists()), None)
            if path is None:
                continue
            listed = path.read_text(encoding='utf-8').split('\n') if path.is_file() else []
            for name in filter(None, map(str.strip, listed)):
                said[str((path.parent / name).resolve())] = split
            if path.is_dir():
                said[str(path.resolve())] = split
    by_split: dict[Optional[str], list[Annotated]] = {}
    for one in annotated:
        path = (place.root / one.picture).resolve()
        split = next((said[str(p)] for p in (path, *path.parents) if str(p) in said), None)
        if split is None and not said:
            split = folder_split(one.picture)
        if split is not None or not said:
            by_split.setdefault(split, []).append(one)
    return by_split


def _find_voc(place: _Place, with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
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


def _voc_lists(place: _Place) -> dict[str, set[str]]:
    """The names in ImageSets/Main/train.txt, val.txt and test.txt, by the split."""
    found = {}
    for path in place.of_suffix('.txt'):
        if path.parent.name == 'Main' and path.stem in ('train', 'val', 'test'):
            lines = path.read_text(encoding='utf-8').splitlines()
            found[path.stem] = {line.split()[0] for line in lines if line.strip()}
    return found if 'train' in found else {}


def _converted(
    place: _Place,
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
        notes.append(_colon('split', SPLIT_SAID))
    splits = {}
    for split, annotated in (('train', train), ('val', val)):
        data = coco_of(place.root, annotated, classes, read)
        if split == 'train':
            _require_masks(place.ann_root, data, with_masks)
        splits[split] = (place.write(f'{split}.json', data), '.', len(data['images']))
    notes.append(_colon('written', f"{place.outputs.folder}/{{train,val}}.json, the same in COCO's format"))
    found = _boxes_found(place, layout, splits, classes, notes)
    if source:
        found.lines.insert(-len(notes), _colon('', f'{source}'))
    return found


# --- labels of pixels -------------------------------------------------------------------------------------------------


def _find_labels(place: _Place, _with_masks: bool, _one_file: Optional[Path]) -> Optional[Found]:
    separate = place.ann_root != place.root
    labels = [path for path in place.ann_files if path.suffix.lower() in LABELS] if separate else None
    pictures = place.pictures
    if separate and place.root in place.ann_root.parents:
        inside = place.ann_root.relative_to(place.root)
        pictures = [picture for picture in pictures if inside not in picture.parents]
    pairs = pairs_of(pictures, labels)
    if not pairs:
        if labels:
            raise DataError(
                f'none of {len(labels)} files of labels in {place.ann_root}, as {labels[0]}, has the name of one of '
                f'{len(pictures)} pictures in {place.root}, as {pictures[0] if pictures else None}'
            )
        return None
    seen = read_labels(place.root, place.ann_root, pairs)
    names, path = class_names((place.root, place.ann_root))
    notes = []
    if is_binary(seen):
        notes.append(_colon('labels', '0 and 255: black and white masks, of which 255 becomes 1'))
        names = names if names and len(names) == 2 else ['background', 'foreground']
        pairs = [
            Pair(pair.picture, _write_mask(place, place.ann_root / pair.label, place.root / pair.picture, pair.label))
            for pair in pairs
        ]
        notes.append(_colon('written', f'{place.outputs.folder}/labels, the masks as labels'))
        classes = Classes(names)
    else:
        classes = classes_of(seen, names, path)
        if path is None:
            notes.append(_colon('', 'called by their values: a classes.txt there, a name in each line, names them'))
    if len(pairs) < len(pictures):
        notes.append(_colon('left out', f'{len(pictures) - len(pairs)} pictures without a file of labels'))
    if classes.reduce_zero_label or classes.ignore_index != 255:
        value = 0 if classes.reduce_zero_label else classes.ignore_index
        notes.append(_colon('ignored', f'the value {value}, which {path} calls void, and 255'))
    return _labels_found(place, pairs, classes, seen.read, notes)


def _write_mask(place: _Place, path: Path, picture: Path, name: Path) -> Path:
    values = read_label(path, LabelRule(256), picture_size(picture))
    written = place.write(f'labels/{name.with_suffix(".png").as_posix()}', encode_picture('.png', values // 255))
    return Path(written)


def _labels_found(place: _Place, pairs: Sequence[Pair], classes: Classes, read: int, notes: list[str]) -> Found:
    by_split: dict[Optional[str], list[Pair]] = {}
    for pair in pairs:
        by_split.setdefault(folder_split(pair.picture), []).append(pair)
    train, val = train_and_val(by_split)
    is_split = bool(val)
    if not is_split:
        by_name = {pair.picture.as_posix(): pair for pair in train}
        train_names, val_names = split_by_chance(by_name)
        train, val = [by_name[name] for name in train_names], [by_name[name] for name in val_names]
        notes.append(_colon('split', f'{SPLIT_SAID}: {place.outputs.folder}/{{train,val}}.txt'))
    own: dict[str, Any] = dict(
        root=str(place.root),
        classes=tuple(classes.names),
        ignore_index=classes.ignore_index,
        reduce_zero_label=classes.reduce_zero_label,
    )
    lines = [f'data in {place.root}: pictures and labels']
    for split, half in (('train', train), ('val', val)):
        prefixes = prefixes_of(half)
        labels = str((place.ann_root / prefixes.labels).absolute())
        listed = place.write(f'{split}.txt', ''.join(f'{name}\n' for name in prefixes.names).encode())
        own[split] = dict(images=prefixes.images, labels=labels, names=str(listed))
        own.setdefault('image_suffix', prefixes.image_suffix)
        own.setdefault('label_suffix', prefixes.label_suffix)
        if (own['image_suffix'], own['label_suffix']) != (prefixes.image_suffix, prefixes.label_suffix):
            own[split].update(image_suffix=prefixes.image_suffix, label_suffix=prefixes.label_suffix)
        lines.append(
            _colon(split, f'{len(half)} pictures {prefixes.images}/*{prefixes.image_suffix}',
                   f'labels {prefixes.labels}/*{prefixes.label_suffix}')
        )  # fmt: skip
    some = '' if read == len(pairs) else f', of the values in {read} of {len(pairs)} files'
    return Found(own, [*lines, _colon('classes', _shown(classes.names) + some), *notes])


def _find_areas(place: _Place, _with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    """Labels drawn from the outlines of objects: 0 is the background, larger objects lie below smaller ones."""
    found = _find_coco(place, False, one_file) or _find_yolo(place, False, one_file)
    if found is None:
        return None
    pairs, names = [], []
    for split in ('train', 'val'):
        files = found.own_data[split]
        data = _read_json(Path(files['annotations']))
        _require_outlines(place, data)
        names = ['background', *_category_names(Path(files['annotations']), data)]
        for image, labels in _draw_labels(data, names):
            picture = Path(split, files['images'], image['file_name'])
            path = f'labels/{split}/{Path(image["file_name"]).with_suffix(".png").as_posix()}'
            pairs.append((split, picture, place.write(path, encode_picture('.png', labels))))
    own: dict[str, Any] = dict(root=found.own_data['root'], classes=tuple(names), ignore_index=255)
    own['reduce_zero_label'] = False
    for split in ('train', 'val'):
        half = [Pair(picture.relative_to(split), label) for of, picture, label in pairs if of == split]
        folder = Path(found.own_data[split]['images'])
        labels_folder = (place.outputs.folder / 'labels' / split).absolute()
        suffixes = {pair.picture.suffix for pair in half}
        if len(suffixes) > 1:
            raise DataError(f"the pictures in {place.root} end in {sorted(suffixes)}, and mmseg's data sets take one")
        listed = [pair.picture.relative_to(folder).with_suffix('').as_posix() for pair in half]
        path = place.write(f'{split}.txt', ''.join(f'{name}\n' for name in listed).encode())
        own[split] = dict(images=folder.as_posix(), labels=str(labels_folder), names=str(path))
        own[split].update(image_suffix=suffixes.pop(), label_suffix='.png')
    own.update(image_suffix=own['train']['image_suffix'], label_suffix='.png')
    lines = [line for line in found.lines if not line.startswith('  classes')]
    drawn = f'{place.outputs.folder}/labels, drawn from the outlines; pixels of no object are the background'
    return Found(own, [*lines, _colon('classes', _shown(names)), _colon('written', drawn)])


def _require_outlines(place: _Place, data: dict[str, Any]) -> None:
    if not any(annotation.get('segmentation') for annotation in data['annotations']):
        raise DataError(f'the annotations of {place.root} are boxes, which are for a config of mmdet without masks')


def _draw_labels(data: dict[str, Any], names: Sequence[str]) -> Any:
    """Each image of annotations in COCO's format, with its labels (H, W) uint8."""
    from pycocotools import mask as coco_mask

    from .annotations import mask_fault

    if len(names) > 255:
        raise DataError(f'labels of 8 bits take 255 classes at most, got {len(names)}')
    values = {category['id']: value for value, category in enumerate(data['categories'], 1)}
    objects: dict[Any, list[dict[str, Any]]] = {}
    for annotation in data['annotations']:
        objects.setdefault(annotation['image_id'], []).append(annotation)
    for image in data['images']:
        size = image['height'], image['width']
        labels: Any = np.zeros(size, np.uint8)
        for annotation in sorted(objects.get(image['id'], ()), key=lambda a: -float(a['area'])):
            outline = annotation.get('segmentation')
            fault = mask_fault(outline, size)
            if fault:
                raise DataError(f'object {annotation.get("id")} of {image["file_name"]}: {fault[0]}: it {fault[1]}')
            if isinstance(outline, list):
                rle = coco_mask.merge(coco_mask.frPyObjects(outline, *size))
            else:
                rle = coco_mask.frPyObjects(outline, *size) if isinstance(outline['counts'], list) else outline
            value = 255 if annotation.get('iscrowd') else values[annotation['category_id']]
            labels[coco_mask.decode(rle).astype(bool)] = value
        yield image, labels
