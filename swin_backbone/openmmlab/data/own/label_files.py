"""Pictures and their labels of segmentation, a file each: which belong together, and which classes they have."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from ...errors import DataError
from ..check_labels import LabelRule, read_label
from ..media import PICTURES, picture_size
from .files import SPLITS, folder_split, words_of

LABELS = ('.png', '.tif', '.tiff', '.bmp')
# Words of folders, and ends of names, that are those of labels, and what the ends of their pictures' names may be.
LABEL_WORDS = {
    *('label', 'labels', 'mask', 'masks', 'annotation', 'annotations', 'ann', 'anns', 'gt', 'gtfine', 'groundtruth'),
    *('seg', 'segs', 'segmentation', 'segmentations', 'segmentationclass', 'target', 'targets', 'labelids'),
}
PICTURE_WORDS = {'image', 'images', 'img', 'imgs', 'picture', 'pictures', 'photo', 'photos', 'jpegimages', 'leftimg'}
SPLIT_WORDS = {word for words in SPLITS.values() for word in words}
LABEL_ENDS = re.compile(
    r'[_.-](gtFine_labelTrainIds|gtFine_labelIds|labelTrainIds|labelIds|labels?|masks?|seg|gt|annotation|L)$', re.I
)
PICTURE_ENDS = re.compile(r'[_.-](leftImg8bit|image|img|sat|rgb)$', re.I)
NO_LABELS = re.compile(r'(_color|_instanceIds|_instanceTrainIds|_polygons)$')
VOID_NAMES = {'void', 'ignore', 'ignored', 'unlabelled', 'unlabeled', 'unlabel', 'dontcare'}
IGNORED = 255
MAX_LABELS = 2000  # of which values are read; of more, that many by chance


class Pair(NamedTuple):
    """A picture and its labels, relative to where pictures and labels are."""

    picture: Path
    label: Path


def pairs_of(pictures: Sequence[Path], labels: Optional[Sequence[Path]] = None) -> list[Pair]:
    """Pictures that have a file of labels of the same name: see `_key`.

    Args:
        pictures: relative paths; if there are no `labels`, those among them that are labels by name are.

    Raises:
        DataError: if a picture has several, which `_key` does not tell apart.
    """
    if labels is None:
        labels = [path for path in pictures if _is_label(path)]
        pictures = [path for path in pictures if not _is_label(path) and not NO_LABELS.search(path.stem)]
        if not labels:  # x.jpg and x.png, in one folder
            labels = [path for path in pictures if path.suffix.lower() == '.png']
            beside = {path.with_suffix('') for path in pictures if path.suffix.lower() != '.png'}
            labels = [path for path in labels if path.with_suffix('') in beside]
            taken = set(labels)
            pictures = [path for path in pictures if path not in taken]
    by_key: dict[tuple[str, ...], list[Path]] = {}
    for path in labels:
        if path.suffix.lower() in LABELS and not NO_LABELS.search(path.stem):
            by_key.setdefault(_key(path, LABEL_ENDS), []).append(path)
    pairs = []
    for picture in pictures:
        found = by_key.get(_key(picture, PICTURE_ENDS), [])
        # Of Cityscapes' files of one picture, that with the classes that are trained on
        best = [path for path in found if 'TrainIds' in path.stem] or found
        if len(best) > 1:
            raise DataError(f'the picture {picture} has several files of labels: {", ".join(map(str, best[:3]))}')
        pairs += [Pair(picture, path) for path in best]
    return pairs


def _is_label(path: Path) -> bool:
    if NO_LABELS.search(path.stem):
        return False
    said = [words for part in path.parent.parts if (words := set(words_of(part)) & (LABEL_WORDS | PICTURE_WORDS))]
    in_folder = bool(said and said[-1] & LABEL_WORDS)
    return path.suffix.lower() in LABELS and (in_folder or bool(LABEL_ENDS.search(path.stem)))


def _key(path: Path, ends: re.Pattern[str]) -> tuple[str, ...]:
    """What a picture and its labels have in common: the split, the folders that say nothing, and the name."""
    said = LABEL_WORDS | PICTURE_WORDS | SPLIT_WORDS
    folders = [part for part in path.parent.parts if not said & set(words_of(part))]
    return (folder_split(path) or '', *folders, ends.sub('', path.stem))


class Prefixes(NamedTuple):
    """How mmseg's data sets name pairs: a folder and a suffix for each of the two, around a name."""

    images: str
    labels: str
    image_suffix: str
    label_suffix: str
    names: list[str]


def prefixes_of(pairs: Sequence[Pair]) -> Prefixes:
    """Folders, suffixes and names of pairs.

    Raises:
        DataError: if they are not of one kind, naming the suffixes that there are.
    """
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for pair in pairs:
        name = _common_name(pair)
        folders = (_without(pair.picture, name), _without(pair.label, name))
        stem = name[-1]
        suffixes = (pair.picture.name[len(stem) :], pair.label.name[len(stem) :])
        found.setdefault((*folders, *suffixes), []).append('/'.join(name))
    if len(found) > 1:
        shown = '; '.join(
            f'{len(names)} as {images}/*{a} with {labels}/*{b}' for (images, labels, a, b), names in found.items()
        )
        raise DataError(
            "a data set of mmseg's takes one folder and one suffix for pictures, and one for labels, in training and "
            f'one in validation; there are {shown}: convert the fewer, or give them one suffix'
        )
    ((images, labels, image_suffix, label_suffix), names) = next(iter(found.items()))
    return Prefixes(images, labels, image_suffix, label_suffix, names)


def _common_name(pair: Pair) -> tuple[str, ...]:
    """The folders at the end of both paths that are equal, and what both names begin with."""
    stem = PICTURE_ENDS.sub('', pair.picture.stem)
    folders: list[str] = []
    for one, other in zip(reversed(pair.picture.parent.parts), reversed(pair.label.parent.parts)):
        if one != other or SPLIT_WORDS & set(words_of(one)):
            break
        folders.insert(0, one)
    return (*folders, stem)


def _without(path: Path, name: Sequence[str]) -> str:
    folder = '/'.join(path.parent.parts[: len(path.parent.parts) - (len(name) - 1)])
    return folder or '.'


class Labels(NamedTuple):
    """What files of labels were seen to hold.

    Args:
        values: how many files have each.
        read: how many were read.
    """

    values: Counter[int]
    read: int


def read_labels(root: Path, label_root: Path, pairs: Sequence[Pair]) -> Labels:
    """The values in files of labels.

    Raises:
        DataError: if a file cannot be read, has colours, or not the size of its picture.
    """
    drawn = pairs if len(pairs) <= MAX_LABELS else random.Random(0).sample(list(pairs), MAX_LABELS)
    values: Counter[int] = Counter()
    anything = LabelRule(256)
    for pair in drawn:
        try:
            size = picture_size(root / pair.picture)
        except OSError:  # named later, or left out by --skip-unreadable
            continue
        values.update(np.unique(read_label(label_root / pair.label, anything, size)).tolist())
    return Labels(values, len(drawn))


class Classes(NamedTuple):
    """The classes of labels.

    Args:
        names: in the order of the values.
        ignore_index: the value that is neither trained nor tested.
        reduce_zero_label: the value 0 is not either, and 1 is the first class.
    """

    names: list[str]
    ignore_index: int = IGNORED
    reduce_zero_label: bool = False


def classes_of(labels: Labels, names: Optional[Sequence[str]], source: Optional[Path]) -> Classes:
    """The classes of labels, by their names or, without names, by their values.

    A first or last class that is called void or unlabelled is no class: it is neither trained nor tested.

    Raises:
        DataError: if there are values without a name.
    """
    largest = max((value for value in labels.values if value != IGNORED), default=0)
    if names is None:
        return Classes([f'class {value}' for value in range(max(largest + 1, 2))])
    if largest >= len(names):
        raise DataError(f'{source} names {len(names)} classes, and the labels have the value {largest}')
    if names[0].lower() in VOID_NAMES:
        return Classes(list(names[1:]), IGNORED, True)
    if names[-1].lower() in VOID_NAMES:
        return Classes(list(names[:-1]), len(names) - 1)
    return Classes(list(names))


def is_binary(labels: Labels) -> bool:
    """Whether labels are masks of black and white, 0 and 255, in which 255 is what is looked for."""
    return set(labels.values) == {0, IGNORED}


def pictures_in(files: Iterable[Path]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in PICTURES]
