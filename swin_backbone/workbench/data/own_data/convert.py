"""Objects of YOLO's and Pascal VOC's files as annotations in COCO's format, which mmdet reads and evaluates.

mmdet's own XMLDataset takes pictures with the suffix .jpg alone, and its metric has no AP over several overlaps.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import cv2
import numpy as np

from ....openmmlab.errors import DataError
from ..media import picture_size
from .coco import describe_boxes
from .folder import DataFolder, OwnData, line
from .splits import Lists, split_pictures


class Box(NamedTuple):
    """An object: its class, (x, y, width, height) in pixels, its outline, and whether scores leave it out."""

    category: str
    bbox: tuple[float, float, float, float]
    outline: Optional[list[float]] = None
    is_ignored: bool = False


def write_converted(
    folder: DataFolder,
    layout: str,
    files: Mapping[Path, Optional[Path]],
    lists: tuple[Lists, str],
    read: Callable[[Path, tuple[int, int]], tuple[tuple[int, int], list[Box]]],
    classes: Callable[[set[str]], Sequence[str]],
) -> OwnData:
    """Split pictures, and write their objects in COCO's format.

    Args:
        files: the annotation file of each picture, None for a picture without objects.
        lists: see `split_pictures`.
        read: returns the size that a file states, and its boxes, by the size of its picture.
        classes: returns the names of all classes by the names of the objects.

    Raises:
        DataError: if a picture cannot be read, there are no objects, or an object has an unknown class.
    """
    split = split_pictures(list(files), *lists)
    objects: dict[Path, tuple[tuple[int, int], list[Box]]] = {}
    for picture in (*split.train, *split.val):
        try:
            size = picture_size(folder.root / picture)
        except OSError as error:
            raise DataError(str(error)) from error
        file = files[picture]
        objects[picture] = (size, []) if file is None else read(file, size)
    names = classes({box.category for _, boxes in objects.values() for box in boxes})
    if not names:
        raise DataError(f'none of the files in {folder.ann_root} has an object')
    for picture, (_, boxes) in objects.items():
        if unknown := {box.category for box in boxes} - set(names):
            raise DataError(f'{files[picture]} has the class {min(unknown)!r}, which is none of {list(names)}')
    splits = {}
    for phase, pictures in (('train', split.train), ('val', split.val)):
        data = _to_coco({picture: objects[picture] for picture in pictures}, names)
        splits[phase] = (folder.write(f'{phase}.json', data), '.', len(pictures))
    written = line('written', f"{folder.outputs}/{{train,val}}.json, the same in COCO's format")
    return describe_boxes(folder, layout, splits, names, [*split.lines, written])


def _to_coco(pictures: Mapping[Path, tuple[tuple[int, int], list[Box]]], classes: Sequence[str]) -> dict[str, Any]:
    """Return sizes and boxes of pictures in COCO's format."""
    ids = {name: number for number, name in enumerate(classes, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for picture, ((height, width), boxes) in pictures.items():
        images.append(dict(id=len(images) + 1, file_name=picture.as_posix(), height=height, width=width))
        for box in boxes:
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=len(images),
                    category_id=ids[box.category],
                    bbox=list(box.bbox),
                    area=cv2.contourArea(np.array(box.outline, np.float32).reshape(-1, 2))
                    if box.outline
                    else box.bbox[2] * box.bbox[3],
                    iscrowd=int(box.is_ignored),
                    **({} if box.outline is None else dict(segmentation=[box.outline])),
                )
            )
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return dict(images=images, annotations=annotations, categories=categories)
