"""Objects of YOLO's and Pascal VOC's files as annotations in COCO's format, which mmdet reads and evaluates.

mmdet's own XMLDataset takes pictures with the suffix .jpg alone, and its metric has no AP over several overlaps.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from ...errors import DataError
from ..media import picture_size
from .coco import describe_boxes, require_masks
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
    classes: Callable[[list[Path]], Sequence[str]],
    read: Callable[..., list[Box]],
    with_masks: bool,
) -> OwnData:
    """Split pictures, and write their objects in COCO's format.

    Args:
        files: the annotation file of each picture, None for a picture without objects.
        lists: see `split_pictures`.
        classes: returns the names of the classes in some files.
        read: returns the boxes of (file, (height, width), classes).
    """
    split = split_pictures(list(files), *lists)
    names = classes([file for picture in (*split.train, *split.val) if (file := files[picture]) is not None])
    splits = {}
    for phase, pictures in (('train', split.train), ('val', split.val)):
        data = to_coco(folder.root, {picture: files[picture] for picture in pictures}, names, read)
        if phase == 'train':
            require_masks(folder.ann_root, data, with_masks)
        splits[phase] = (folder.write(f'{phase}.json', data), '.', len(pictures))
    written = line('written', f"{folder.outputs.folder}/{{train,val}}.json, the same in COCO's format")
    return describe_boxes(folder, layout, splits, names, [*split.lines, written])


def to_coco(
    root: Path, files: Mapping[Path, Optional[Path]], classes: Sequence[str], read: Callable[..., list[Box]]
) -> dict[str, Any]:
    """Return the annotations of pictures in COCO's format; see `write_converted`.

    Raises:
        DataError: if a file is wrong, with its name.
    """
    ids = {name: number for number, name in enumerate(classes, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for picture, file in files.items():
        try:
            height, width = picture_size(root / picture)
        except OSError as error:
            raise DataError(str(error)) from error
        images.append(dict(id=len(images) + 1, file_name=picture.as_posix(), height=height, width=width))
        for box in read(file, (height, width), classes) if file is not None else ():
            if box.category not in ids:
                raise DataError(f'{file} has the class {box.category!r}, which is none of {list(classes)}')
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=len(images),
                    category_id=ids[box.category],
                    bbox=list(box.bbox),
                    area=box.bbox[2] * box.bbox[3] if box.outline is None else _area(box.outline),
                    iscrowd=int(box.is_ignored),
                    **({} if box.outline is None else dict(segmentation=[box.outline])),
                )
            )
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return dict(images=images, annotations=annotations, categories=categories)


def _area(outline: Sequence[float]) -> float:
    """Return the area of a polygon of x and y in turn, by the shoelace formula."""
    x, y = np.array(outline[::2]), np.array(outline[1::2])
    return float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2)
