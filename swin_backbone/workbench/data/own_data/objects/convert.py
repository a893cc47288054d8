"""Objects of other formats as annotations in COCO's format, which mmdet reads and evaluates.

mmdet's own XMLDataset takes pictures with the suffix .jpg alone, and its metric has no AP over several overlaps.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from .....openmmlab.errors import DataError, Faults
from ...annotations import check_annotations
from ...media import SKIP_HINT, picture_size
from ..folder import UNREADABLE, DataFolder, OwnData, line
from ..splits import Lists, split_pictures
from .coco import RECTANGLES, describe_boxes
from .shapes import Box, area_of

Source = TypeVar('Source')  # of the objects of a picture: a file, or an element of a file
NO_AREA = 'objects without an area inside of their picture'


class Part(NamedTuple):
    """Annotations of a picture, and their place for errors."""

    where: str
    content: Any

    def __str__(self) -> str:
        return self.where


def write_converted(
    folder: DataFolder,
    layout: str,
    files: Mapping[Path, Optional[Source]],
    lists: tuple[Lists, str],
    read: Callable[[Source, tuple[int, int]], tuple[tuple[int, int], list[Box]]],
    classes: Callable[[set[str]], Sequence[str]],
    left_out: Optional[Faults] = None,
) -> OwnData:
    """Split pictures, and write their objects in COCO's format.

    Args:
        files: the annotations of each picture, which errors print; None for a picture without objects.
        lists: see `split_pictures`.
        read: returns the size that a file states, and its boxes, by the size of its picture.
        classes: returns the names of all classes by the names of the objects.
        left_out: what `read` leaves out, for the report. Objects outside of their picture are added.

    Raises:
        DataError: if a picture cannot be read, there are no objects, or an object has an unknown class.
    """
    left_out = Faults() if left_out is None else left_out
    split = split_pictures(list(files), *lists)
    objects: dict[Path, tuple[tuple[int, int], list[Box]]] = {}
    for picture in (*split.train, *split.val, *split.test):
        try:
            size = picture_size(folder.root / picture)
        except OSError as error:
            if not folder.skip_unreadable:
                raise DataError(f'{error}{SKIP_HINT}') from error
            left_out.add(UNREADABLE, str(error))
            continue
        file = files[picture]
        size, boxes = (size, []) if file is None else read(file, size)
        objects[picture] = size, [box for box in boxes if 0 not in box.bbox[2:]]
        if len(objects[picture][1]) < len(boxes):
            left_out.add(NO_AREA, str(file), len(boxes) - len(objects[picture][1]))
    names = classes({box.category for _, boxes in objects.values() for box in boxes})
    reasons = left_out.sentences()
    if not names:
        raise DataError('. '.join([f'none of the files in {folder.ann_root} has an object', *reasons]))
    for picture, (_, boxes) in objects.items():
        if unknown := {box.category for box in boxes} - set(names):
            raise DataError(f'{files[picture]} has the class {min(unknown)!r}, which is none of {list(names)}')
    found = [box for _, boxes in objects.values() for box in boxes]
    rectangles, ignored = (sum(getattr(box, kind) for box in found) for kind in ('is_rectangle', 'is_ignored'))
    draws_rectangles = folder.with_masks and rectangles < len(found)
    splits = {}
    for phase, pictures in split.parts().items():
        readable = {picture: (files[picture], *objects[picture]) for picture in pictures if picture in objects}
        data = _to_coco(readable, names, draws_rectangles)
        path = folder.write(f'{phase}.json', data)
        check_annotations(path, 'COCO', folder.with_masks, (data, False))
        splits[phase] = (path, '.', len(pictures))
    lines = list(split.lines)
    if draws_rectangles and rectangles:
        lines.append(line('masks', RECTANGLES.format(rectangles, len(found))))
    if ignored:
        lines.append(line('difficult', f"{ignored} objects are neither trained nor scored, as COCO's crowds"))
    lines += [line('left out', reason) for reason in reasons]
    return describe_boxes(folder, layout, splits, names, lines)


def _to_coco(
    pictures: Mapping[Path, tuple[Any, tuple[int, int], list[Box]]], classes: Sequence[str], draws_rectangles: bool
) -> dict[str, Any]:
    """Return sizes and objects of pictures in COCO's format.

    Args:
        pictures: file, size and objects. `own_id` of an object is its place in the file.
        draws_rectangles: write the masks of boxes too.
    """
    ids = {name: number for number, name in enumerate(classes, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for picture, (file, size, boxes) in pictures.items():
        images.append(dict(id=len(images) + 1, file_name=picture.as_posix(), height=size[0], width=size[1]))
        for number, box in enumerate(boxes, 1):
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    own_id=f'{file}, object {number}',
                    image_id=len(images),
                    category_id=ids[box.category],
                    bbox=list(box.bbox),
                    area=area_of(box, size),
                    iscrowd=int(box.is_ignored),
                    **(dict(segmentation=box.mask) if draws_rectangles or not box.is_rectangle else {}),
                )
            )
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return dict(images=images, annotations=annotations, categories=categories)
