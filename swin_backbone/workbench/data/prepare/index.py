"""The index of records: pictures are split, objects numbered and checked, and a file is written for each split."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ....checks import DataError, list_first
from ..annotations import scan_annotation_file
from ..check_labels import ANY_VALUE, read_colours, read_label
from ..dataset_warnings import find_class_warnings
from ..media import read_picture_size
from .folder import DataFolder, format_line, list_folders
from .objects.shapes import compute_area, find_corners, make_box, parse_angle
from .records import UNSPLIT, AnnotatedImage, LabelFile, Records
from .splits import DRAWN_NOTE, draw_by_class, draw_split, split_pictures

CLASSES_SHOWN = 12


@dataclass(frozen=True)
class IndexedSplit:
    """A split of an index: its file, and counts of the contents.

    Args:
        file: in COCO's format for a detector; pairs of pictures and labels, in mmengine's format, for a segmentor; and
            pictures with the numbers of their classes for a classifier. Names of pictures are relative to the root.
        num_pictures: number of pictures.
        objects: number of objects by class, of a detector, or of pictures, of a classifier.
        most_objects: largest number of objects in a picture, of a detector.
        has_rles: whether the mask of an object is an RLE.
        is_alone: a test set without pictures for training, which are drawn from it.
    """

    file: str
    num_pictures: int
    objects: Mapping[str, int] = field(default_factory=dict)
    most_objects: int = 0
    has_rles: bool = False
    is_alone: bool = False


def write_index(
    scope: str, folder: DataFolder, records: Records, index_folder: Path
) -> tuple[dict[str, IndexedSplit], list[str]]:
    """Write the file of each split into the folder of an index, and return the splits and the lines of the summary.

    Raises:
        DataError: if pictures cannot be split, or annotations are wrong.
    """
    by_split, lines, is_test_alone = _split(scope, records)
    write: Any = dict(mmdet=_write_objects, mmseg=_write_labels, mmpretrain=_write_classes)[scope]
    if scope == 'mmdet':  # each image once: a picture may be in two splits
        images = [image for annotated in records.by_split.values() for image in chain.from_iterable(annotated.values())]
        lines += _prepare_objects(folder, images)
    summary = [f'data in {folder.root}: {records.layout}']
    splits = {}
    for split, annotated in by_split.items():
        splits[split], texts = write(folder, index_folder, split, annotated, records)
        summary.append(format_line(split, *texts))
        faults = find_class_warnings(splits[split].objects, split)
        lines += [format_line('warning', sentence) for sentence in faults.sentences()]
    if is_test_alone:
        splits['test'] = replace(splits['test'], is_alone=True)
    classes = format_line('classes', f'{len(records.classes)}: {list_first(records.classes, CLASSES_SHOWN)}')
    return splits, [*summary, classes, *lines, *records.lines]


def _split(scope: str, records: Records) -> tuple[dict[str, Mapping[Path, Any]], list[str], bool]:
    """Return the annotations by split, lines of the summary, and whether there is a test set alone."""
    by_split = dict(records.by_split)
    lines: list[str] = []
    if UNSPLIT in by_split:
        unsplit = by_split.pop(UNSPLIT)
        draw = partial(draw_by_class, unsplit) if scope == 'mmpretrain' else draw_split
        if records.given_split.pictures or scope != 'mmpretrain':
            lists, lines = split_pictures(list(unsplit), records.given_split, draw)
        else:
            lists, lines = dict(zip(('train', 'val'), draw(unsplit))), [format_line('split', DRAWN_NOTE)]
        by_split = {**{split: {path: unsplit[path] for path in paths} for split, paths in lists.items()}, **by_split}
    shared = {*by_split.get('test', ())} & {*by_split['train'], *by_split['val']}
    is_test_alone = UNSPLIT in records.by_split and not {*records.given_split.pictures} - {'test'} and bool(shared)
    if shared and not is_test_alone:
        sentence = f'{len(shared)} pictures of the test are in training or validation, as {min(shared)}'
        lines.append(format_line('warning', sentence))
    return by_split, lines, is_test_alone


# --- detection --------------------------------------------------------------------------------------------------------


def _prepare_objects(folder: DataFolder, images: Sequence[AnnotatedImage]) -> list[str]:
    """Turn CVAT's rotated boxes, and give boxes among outlines a mask, in place.

    Returns:
        Lines of the summary.
    """
    objects = [item for image in images for item in image.objects]
    num_boxes = sum(not item.get('segmentation') for item in objects)
    needs_masks = folder.with_masks and num_boxes < len(objects)
    num_turned = 0
    for image in images:
        size = image.fields['height'], image.fields['width']
        for item in image.objects:
            attributes = item.get('attributes')
            outline = item.pop('outline', None)
            degrees = parse_angle(attributes.get('rotation')) if isinstance(attributes, dict) else 0
            if item.get('segmentation') or not (degrees or needs_masks):
                continue
            if outline is None:
                x, y, width, height = item['bbox']
                corners = find_corners(x, y, x + width, y + height, degrees)
                box = make_box('', corners, size, is_rectangle=True)
                outline = box.mask or [corners.clip(0, size[::-1]).ravel().tolist()]  # without area, at the edge
                if degrees:
                    item.update(bbox=list(box.bbox), area=compute_area(box, size))
                    num_turned += 1
            if needs_masks:
                item['segmentation'] = outline
    num_crowds = sum(bool(item.get('iscrowd')) for item in objects if 'class_name' in item)
    lines = [format_line('rotated', f'{num_turned} boxes, by their attribute rotation')] if num_turned else []
    if needs_masks and num_boxes:
        sentence = f'{num_boxes} of {len(objects)} objects are boxes, whose masks are rectangles'
        lines.append(format_line('masks', sentence))
    if num_crowds:
        lines.append(format_line('difficult', f"{num_crowds} objects are neither trained nor scored, as COCO's crowds"))
    return lines


def _write_objects(
    folder: DataFolder, index_folder: Path, split: str, annotated: Mapping[Path, list[AnnotatedImage]], records: Records
) -> tuple[IndexedSplit, list[str]]:
    category_ids = {name: category_id for category_id, name in enumerate(records.classes, 1)}
    categories = [dict(id=category_id, name=name) for name, category_id in category_ids.items()]
    categories = records.categories.get(split, records.categories.get(UNSPLIT, categories))
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image in chain.from_iterable(annotated.values()):
        images.append({'id': len(images) + 1, **image.fields})
        for item in image.objects:
            category_id = category_ids.get(item.get('class_name', ''))
            ids = dict(id=len(annotations) + 1, image_id=images[-1]['id'], category_id=category_id)
            fields = {name: value for name, value in item.items() if name != 'class_name'}
            annotations.append({**ids, **fields})
    content = dict(images=images, annotations=annotations, categories=categories)
    if split == 'train' and not annotations:
        raise DataError(f'none of the {len(images)} pictures for training has an object')
    path = index_folder / f'{split}.json'
    path.write_text(json.dumps(content), encoding='utf-8')
    scan = scan_annotation_file(path, 'COCO', folder.with_masks, content=content)
    most_objects = max((num_objects for _, _, num_objects in scan.pictures.values()), default=0)
    indexed = IndexedSplit(str(path), len(images), dict(scan.objects), most_objects, bool(scan.num_rles))
    pictures = f'{len(images)} pictures in {list_folders([*annotated])}'
    return indexed, [pictures, f'{len(annotations)} objects, at most {most_objects} in a picture']


# --- segmentation -----------------------------------------------------------------------------------------------------


def _write_labels(
    folder: DataFolder, index_folder: Path, split: str, label_of_picture: Mapping[Path, LabelFile], _: Records
) -> tuple[IndexedSplit, list[str]]:
    outputs = index_folder / 'labels'
    items: list[dict[str, Any]] = [
        dict(
            img_path=picture.as_posix(),
            seg_map_path=str(_write_label(folder, picture, label, outputs).absolute()),
            reduce_zero_label=False,
            label_map=None,
            seg_fields=[],
        )
        for picture, label in label_of_picture.items()
    ]
    path = index_folder / f'{split}.json'
    path.write_text(json.dumps(dict(metainfo={}, data_list=items)), encoding='utf-8')
    folders = list_folders([label.path for label in label_of_picture.values()])
    return IndexedSplit(str(path), len(items)), [
        f'{len(items)} pictures in {list_folders([*label_of_picture])}',
        f'labels in {folders}' + (f', as classes in {outputs}' if outputs.is_dir() else ''),
    ]


def _write_label(folder: DataFolder, picture: Path, label: LabelFile, outputs: Path) -> Path:
    """Write the classes of a label file whose values are others into the folder `outputs`, and return the path."""
    path = folder.ann_root / label.path
    class_of_value = label.class_of_value
    if all(value == index for value, index in class_of_value.items()):
        return path
    try:
        size = read_picture_size(folder.root / picture)
    except OSError:  # named later, or left out by --skip-unreadable
        return path
    values = read_colours(path) if label.in_colours else read_label(path, ANY_VALUE, size)
    if values is None or values.shape != size:
        raise DataError(f'the label {path} takes the colours of labelmap.txt in {size[1]}x{size[0]} pixels')
    labels_HW = np.zeros(size, np.uint8)
    for value in np.unique(values).tolist():
        if value not in class_of_value:
            shown = f'colour {tuple(value.to_bytes(3, "big"))}' if label.in_colours else f'value {value}'
            raise DataError(f'the label {path} has the {shown}, which is that of no class')
        labels_HW[values == value] = class_of_value[value]
    output = outputs / label.path.with_suffix('.png')
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(cv2.imencode('.png', labels_HW)[1].tobytes())
    return output


# --- classification ---------------------------------------------------------------------------------------------------


def _write_classes(
    _: DataFolder, index_folder: Path, split: str, class_of_picture: Mapping[Path, str], records: Records
) -> tuple[IndexedSplit, list[str]]:
    content = ''.join(f'{path.as_posix()} {records.classes.index(name)}\n' for path, name in class_of_picture.items())
    path = index_folder / f'{split}.txt'
    path.write_bytes(content.encode())
    counts = Counter([*class_of_picture.values()])
    indexed = IndexedSplit(str(path), len(class_of_picture), {name: counts[name] for name in records.classes})
    return indexed, [f'{len(class_of_picture)} pictures', str(path)]
