"""Objects of other formats as annotations in COCO's format, which mmdet reads and evaluates.

mmdet's own XMLDataset takes pictures with the suffix .jpg alone, and its metric has no AP over several overlaps.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar, Union

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pycocotools import mask as coco_mask

from .....openmmlab.errors import DataError, Faults
from ...media import picture_size
from ..folder import DataFolder, OwnData, line
from ..splits import Lists, split_pictures
from .coco import describe_boxes

Source = TypeVar('Source')  # of the objects of a picture: a file, or an element of a file
ELLIPSE = np.linspace(0, 2 * np.pi, 64, endpoint=False)  # angles of the points of its outline


class Part(NamedTuple):
    """Annotations of a picture, and their place for errors."""

    where: str
    content: Any

    def __str__(self) -> str:
        return self.where


class Box(NamedTuple):
    """An object: its class, (x, y, width, height) in pixels, its outlines or RLE, and whether scores leave it out."""

    category: str
    bbox: tuple[float, float, float, float]
    mask: Union[list[list[float]], dict[str, Any], None] = None
    is_ignored: bool = False


def box_around(
    category: str, points: ArrayLike, size: tuple[int, int], is_outline: bool = False, is_ignored: bool = False
) -> Box:
    """Return an object by points (N, 2) in pixels, the corners of a box or an outline, cut at the picture's edges.

    Raises:
        ValueError: if they are not two finite points, or three of an outline.
    """
    given: NDArray[Any] = np.asarray(points, float)
    if given.ndim != 2 or given.shape[1] != 2 or len(given) < 2 + is_outline or not np.isfinite(given).all():
        raise ValueError(f'points must be finite, (N, 2), got {given.shape}')
    given = given.clip(0, size[::-1])
    low, high = given.min(0), given.max(0)
    x, y, w, h = np.concatenate([low, high - low]).round(3).tolist()
    return Box(category, (x, y, w, h), [given.ravel().round(3).tolist()] if is_outline else None, is_ignored)


def box_of_bitmap(category: str, bitmap: NDArray[Any], left: int, top: int, size: tuple[int, int]) -> Box:
    """Return an object by a bitmap (H, W) whose first pixel is at `left` and `top` of the picture.

    Raises:
        ValueError: if the bitmap reaches out of the picture.
    """
    whole = np.zeros(size, np.uint8, 'F')
    whole[top : top + bitmap.shape[0], left : left + bitmap.shape[1]] = bitmap != 0
    rle = coco_mask.encode(whole)
    x, y, w, h = coco_mask.toBbox(rle).tolist()
    return Box(category, (x, y, w, h), dict(size=list(size), counts=rle['counts'].decode()))


def ellipse(centre: Sequence[float], radii: Sequence[float], degrees: float = 0) -> NDArray[Any]:
    """Return the points of an outline, (N, 2)."""
    outline: NDArray[Any] = rotate(np.stack([np.cos(ELLIPSE), np.sin(ELLIPSE)], 1) * radii, degrees) + centre
    return outline


def rotate(points: NDArray[Any], degrees: float) -> NDArray[Any]:
    """Return points (N, 2), turned clockwise around (0, 0) of a picture."""
    turn = np.exp(1j * np.deg2rad(degrees))
    turned: NDArray[Any] = points @ np.array([[turn.real, turn.imag], [-turn.imag, turn.real]])
    return turned


def join_groups(parts: Iterable[tuple[Hashable, Box]]) -> list[Box]:
    """Join the parts of an object, which have the same class and the same group, which is not None."""
    joined: dict[Hashable, Box] = {}
    for number, (group, box) in enumerate(parts):
        key = (box.category, group) if group is not None and not isinstance(box.mask, dict) else (number,)
        other = joined.get(key, box)
        if other is not box:
            low = np.minimum(box.bbox[:2], other.bbox[:2])
            high = np.maximum(np.add(box.bbox[:2], box.bbox[2:]), np.add(other.bbox[:2], other.bbox[2:]))
            x, y, w, h = np.concatenate([low, high - low]).round(3).tolist()
            mask = [*other.mask, *box.mask] if other.mask and box.mask else None
            box = box._replace(bbox=(x, y, w, h), mask=mask, is_ignored=box.is_ignored or other.is_ignored)
        joined[key] = box
    return list(joined.values())


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
        left_out: what `read` leaves out, for the report.

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
    reasons = left_out.sentences() if left_out else []
    if not names:
        raise DataError('. '.join([f'none of the files in {folder.ann_root} has an object', *reasons]))
    for picture, (_, boxes) in objects.items():
        if unknown := {box.category for box in boxes} - set(names):
            raise DataError(f'{files[picture]} has the class {min(unknown)!r}, which is none of {list(names)}')
    splits = {}
    for phase, pictures in (('train', split.train), ('val', split.val)):
        data = _to_coco({picture: objects[picture] for picture in pictures}, names)
        splits[phase] = (folder.write(f'{phase}.json', data), '.', len(pictures))
    written = line('written', f"{folder.outputs}/{{train,val}}.json, the same in COCO's format")
    lines = [line('left out', reason) for reason in reasons]
    return describe_boxes(folder, layout, splits, names, [*split.lines, written, *lines])


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
                    area=_area(box),
                    iscrowd=int(box.is_ignored),
                    **({} if box.mask is None else dict(segmentation=box.mask)),
                )
            )
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return dict(images=images, annotations=annotations, categories=categories)


def _area(box: Box) -> float:
    if isinstance(box.mask, dict):
        return int(coco_mask.area(box.mask))
    if box.mask:
        return sum(cv2.contourArea(np.array(outline, np.float32).reshape(-1, 2)) for outline in box.mask)
    return box.bbox[2] * box.bbox[3]
