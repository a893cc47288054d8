"""The annotations of a user in one form, which the reader of every format returns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

UNSPLIT = ''  # in place of 'train' and 'val': pictures that are split later
PicturesBySplit = dict[str, list[Path]]


class GivenSplit(NamedTuple):
    """The split that files or folders name, and these in words, for errors and the summary. Empty: none is named."""

    pictures: Mapping[str, list[Path]] = {}
    source: str = ''


class Records(NamedTuple):
    """The annotations of a user, before pictures are split, numbered and written.

    Args:
        layout: in words.
        classes: names, in the order of their numbers.
        by_split: the annotation of each picture, by its path below the root, for each split 'train', 'val' and 'test'.
            Pictures of UNSPLIT are split later. An annotation is a list of `AnnotatedImage` for a detector, a
            `LabelFile` for a segmentor, and the name of a class for a classifier.
        given_split: how files or folders split the pictures of UNSPLIT.
        lines: lines of the summary.
        categories: the ids of the classes in each split, in COCO's format. Default: `classes`, numbered from 1.
    """

    layout: str
    classes: list[str]
    by_split: Mapping[str, Mapping[Path, Any]]
    given_split: GivenSplit
    lines: list[str]
    categories: Mapping[str, list[Any]] = {}


class AnnotatedImage(NamedTuple):
    """An image of COCO's format and its objects.

    Args:
        fields: fields of the image, with height and width; without an id, it gets the next number.
        objects: with `class_name` or COCO's `category_id`; without an id, they get the next number.
            An object without a segmentation is a box. `outline` has its corners; without it (COCO JSON) they follow
            from `bbox` and the attribute `rotation`.
    """

    fields: dict[str, Any]
    objects: list[dict[str, Any]]


class LabelFile(NamedTuple):
    """A file with the class of each pixel.

    Args:
        path: path of the file.
        class_of_value: class of each value of the file.
        in_colours: values of the file are colours, 0xRRGGBB.
    """

    path: Path
    class_of_value: Mapping[int, int]
    in_colours: bool = False
