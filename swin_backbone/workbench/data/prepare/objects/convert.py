"""Objects of other formats in COCO's format, which mmdet reads and evaluates.

mmdet's own XMLDataset takes only pictures with the suffix .jpg, and its metric has no AP over several overlaps.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from .....checks import DataError
from .....openmmlab.errors import Faults
from ...media import OTHER_SIZE, SKIP_HINT, read_picture_size
from ..folder import UNREADABLE, DataFolder, format_line
from ..records import UNSPLIT, AnnotatedImage, GivenSplit, Records
from .shapes import Box, compute_area

Source = TypeVar('Source')  # where the objects of a picture are: a file, or an element of a file
NO_AREA = 'objects without an area inside of their picture'


class PictureAnnotations(NamedTuple):
    """Annotations of a picture, and their place for errors."""

    where: str
    content: Any

    def __str__(self) -> str:
        return self.where


def convert_objects(
    folder: DataFolder,
    layout: str,
    files: Mapping[Path, Optional[Source]],
    given_split: GivenSplit,
    read: Callable[[Source, tuple[int, int], Faults], tuple[tuple[int, int], list[Box]]],
    name_classes: Callable[[set[str]], Sequence[str]],
) -> Records:
    """Return the objects of all pictures.

    Args:
        files: the annotations of each picture, which errors print; None for a picture without objects.
        given_split: see `split_pictures`.
        read: returns the size that a file states, and its boxes, by the size of its picture; adds the shapes that it
            leaves out to the last argument.
        name_classes: returns the names of all classes, from the class names of the objects.

    Raises:
        DataError: if a picture cannot be read, there are no objects, or an object has an unknown class.
    """
    left_out, warnings = Faults(), Faults()
    pictures: dict[Path, list[AnnotatedImage]] = {}
    owners: dict[str, str] = {}  # a file of each class
    for picture, file in files.items():
        try:
            size = read_picture_size(folder.root / picture)
        except OSError as error:
            if not folder.skip_unreadable:
                raise DataError(f'{error}{SKIP_HINT}') from error
            left_out.add(UNREADABLE, str(error))
            continue
        height, width = size
        size, boxes = (size, []) if file is None else read(file, size, left_out)
        if size != (height, width):  # as LabelImg states, which does not turn a photograph by its EXIF
            warnings.add(OTHER_SIZE, f'{picture} is {width}x{height}, annotated as {size[1]}x{size[0]}')
        kept = [box for box in boxes if 0 not in box.bbox[2:]]
        if len(kept) < len(boxes):
            left_out.add(NO_AREA, str(file), len(boxes) - len(kept))
        for box in kept:
            owners.setdefault(box.class_name, str(file))
        fields = dict(file_name=picture.as_posix(), height=size[0], width=size[1])
        objects = [_to_coco(box, size, f'{file}, object {place}') for place, box in enumerate(kept, 1)]
        pictures[picture] = [AnnotatedImage(fields, objects)]
    names = list(name_classes({*owners}))
    reasons = left_out.sentences()
    if not names:
        raise DataError('. '.join([f'none of the files in {folder.ann_root} has an object', *reasons]))
    if unknown := owners.keys() - {*names}:
        raise DataError(f'{owners[min(unknown)]} has the class {min(unknown)!r}, which is none of {names}')
    lines = [format_line('left out', reason) for reason in reasons]
    lines += [format_line('warning', sentence) for sentence in warnings.sentences()]
    return Records(layout, names, {UNSPLIT: pictures}, given_split, lines)


def parse_size(height: Any, width: Any) -> Optional[tuple[int, int]]:
    """Return the size that a file of annotations states for its picture; None without two whole numbers above 0."""
    texts = [str(side).strip() for side in (height, width)]
    return (int(texts[0]), int(texts[1])) if all(text.isdecimal() and int(text) for text in texts) else None


def _to_coco(box: Box, size: tuple[int, int], own_id: str) -> dict[str, Any]:
    """Return an object: see `AnnotatedImage`. `own_id` is its place in the user's file."""
    mask = dict(outline=box.mask) if box.is_rectangle else dict(segmentation=box.mask)
    return dict(
        own_id=own_id,
        class_name=box.class_name,
        bbox=list(box.bbox),
        area=compute_area(box, size),
        iscrowd=int(box.is_ignored),
        **mask,
    )
