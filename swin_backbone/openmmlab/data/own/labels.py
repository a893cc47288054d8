"""Labels of pixels: files that are there, or drawn from the outlines of objects."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..annotations import mask_fault
from ..check_labels import LabelRule, read_label
from ..media import encode_picture, picture_size
from .boxes import category_names, find_coco, find_yolo, read_json
from .files import class_names, folder_split, split_by_chance, train_and_val
from .label_files import LABELS, Classes, Pair, classes_of, is_binary, pairs_of, prefixes_of, read_labels
from .place import SPLIT_SAID, Found, Place, line_of, names_shown


def find_labels(place: Place, _with_masks: bool, _one_file: Optional[Path]) -> Optional[Found]:
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
        notes.append(line_of('labels', '0 and 255: black and white masks, of which 255 becomes 1'))
        names = names if names and len(names) == 2 else ['background', 'foreground']
        pairs = [
            Pair(pair.picture, _write_mask(place, place.ann_root / pair.label, place.root / pair.picture, pair.label))
            for pair in pairs
        ]
        notes.append(line_of('written', f'{place.outputs.folder}/labels, the masks as labels'))
        classes = Classes(names)
    else:
        classes = classes_of(seen, names, path)
        if path is None:
            notes.append(line_of('', 'called by their values: a classes.txt there, a name in each line, names them'))
    if len(pairs) < len(pictures):
        notes.append(line_of('left out', f'{len(pictures) - len(pairs)} pictures without a file of labels'))
    if classes.reduce_zero_label or classes.ignore_index != 255:
        value = 0 if classes.reduce_zero_label else classes.ignore_index
        notes.append(line_of('ignored', f'the value {value}, which {path} calls void, and 255'))
    return _labels_found(place, pairs, classes, seen.read, notes)


def _write_mask(place: Place, path: Path, picture: Path, name: Path) -> Path:
    values = read_label(path, LabelRule(256), picture_size(picture))
    written = place.write(f'labels/{name.with_suffix(".png").as_posix()}', encode_picture('.png', values // 255))
    return Path(written)


def _labels_found(place: Place, pairs: Sequence[Pair], classes: Classes, read: int, notes: list[str]) -> Found:
    by_split: dict[Optional[str], list[Pair]] = {}
    for pair in pairs:
        by_split.setdefault(folder_split(pair.picture), []).append(pair)
    train, val = train_and_val(by_split)
    is_split = bool(val)
    if not is_split:
        by_name = {pair.picture.as_posix(): pair for pair in train}
        train_names, val_names = split_by_chance(by_name)
        train, val = [by_name[name] for name in train_names], [by_name[name] for name in val_names]
        notes.append(line_of('split', f'{SPLIT_SAID}: {place.outputs.folder}/{{train,val}}.txt'))
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
            line_of(split, f'{len(half)} pictures {prefixes.images}/*{prefixes.image_suffix}',
                   f'labels {prefixes.labels}/*{prefixes.label_suffix}')
        )  # fmt: skip
    some = '' if read == len(pairs) else f', of the values in {read} of {len(pairs)} files'
    return Found(own, [*lines, line_of('classes', names_shown(classes.names) + some), *notes])


def find_areas(place: Place, _with_masks: bool, one_file: Optional[Path]) -> Optional[Found]:
    """Labels drawn from the outlines of objects: 0 is the background, larger objects lie below smaller ones."""
    found = find_coco(place, False, one_file) or find_yolo(place, False, one_file)
    if found is None:
        return None
    drawn: list[tuple[str, Path, Path]] = []
    names: list[str] = []
    for split in ('train', 'val'):
        files = found.own_data[split]
        data = read_json(Path(files['annotations']))
        _require_outlines(place, data)
        names = ['background', *category_names(Path(files['annotations']), data)]
        for image, labels in _draw_labels(data, names):
            picture = Path(split, files['images'], image['file_name'])
            path = f'labels/{split}/{Path(image["file_name"]).with_suffix(".png").as_posix()}'
            drawn.append((split, picture, place.write(path, encode_picture('.png', labels))))
    own: dict[str, Any] = dict(root=found.own_data['root'], classes=tuple(names), ignore_index=255)
    own['reduce_zero_label'] = False
    for split in ('train', 'val'):
        half = [Pair(picture.relative_to(split), label) for of, picture, label in drawn if of == split]
        folder = Path(found.own_data[split]['images'])
        labels_folder = (place.outputs.folder / 'labels' / split).absolute()
        suffixes = {pair.picture.suffix for pair in half}
        if len(suffixes) > 1:
            raise DataError(f"the pictures in {place.root} end in {sorted(suffixes)}, and mmseg's data sets take one")
        listed = [pair.picture.relative_to(folder).with_suffix('').as_posix() for pair in half]
        listing = place.write(f'{split}.txt', ''.join(f'{name}\n' for name in listed).encode())
        own[split] = dict(images=folder.as_posix(), labels=str(labels_folder), names=str(listing))
        own[split].update(image_suffix=suffixes.pop(), label_suffix='.png')
    own.update(image_suffix=own['train']['image_suffix'], label_suffix='.png')
    lines = [line for line in found.lines if not line.startswith('  classes')]
    written = f'{place.outputs.folder}/labels, drawn from the outlines; pixels of no object are the background'
    return Found(own, [*lines, line_of('classes', names_shown(names)), line_of('written', written)])


def _require_outlines(place: Place, data: dict[str, Any]) -> None:
    if not any(annotation.get('segmentation') for annotation in data['annotations']):
        raise DataError(f'the annotations of {place.root} are boxes, which are for a config of mmdet without masks')


def _draw_labels(data: dict[str, Any], names: Sequence[str]) -> Iterator[tuple[dict[str, Any], NDArray[np.uint8]]]:
    """Each image of annotations in COCO's format, with its labels (H, W) uint8."""
    from pycocotools import mask as coco_mask

    if len(names) > 255:
        raise DataError(f'labels of 8 bits take 255 classes at most, got {len(names)}')
    values = {category['id']: value for value, category in enumerate(data['categories'], 1)}
    objects: dict[Any, list[dict[str, Any]]] = {}
    for annotation in data['annotations']:
        objects.setdefault(annotation['image_id'], []).append(annotation)
    for image in data['images']:
        size = image['height'], image['width']
        labels = np.zeros(size, np.uint8)
        for annotation in sorted(objects.get(image['id'], ()), key=lambda a: -float(a['area'])):
            outline: Any = annotation.get('segmentation')
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
