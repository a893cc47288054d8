"""Pairs of pictures and label files for segmentation."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Optional

from ....checks import DataError
from ..media import PICTURE_SUFFIXES
from .splits import SPLIT_OF, find_folder_split, list_words

LABEL_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp')
# Words of folders and ends of names, of labels and of pictures.
LABEL_WORDS = {
    *('label', 'labels', 'mask', 'masks', 'annotation', 'annotations', 'ann', 'anns', 'gt', 'gtfine', 'groundtruth'),
    *('seg', 'segs', 'segmentation', 'segmentations', 'segmentationclass', 'target', 'targets', 'labelids'),
    'segmentationclasspng',
}
PICTURE_WORDS = {'image', 'images', 'img', 'imgs', 'picture', 'pictures', 'photo', 'photos', 'jpegimages', 'leftimg'}
LABEL_ENDS = re.compile(
    r'[_.-](gtFine_labelTrainIds|gtFine_labelIds|labelTrainIds|labelIds|labels?|masks?|seg|gt|annotation|L)$', re.I
)
PICTURE_ENDS = re.compile(r'[_.-](leftImg8bit|image|img|sat|rgb)$', re.I)
FolderTags = tuple[str, ...]  # words of a path beside labels, images, train and so on: images_2021 has 2021
WORDS = re.compile(r'[a-z]+|[0-9]+')
ROLES = LABEL_WORDS | PICTURE_WORDS | SPLIT_OF.keys()
SUFFIX_WORDS = {suffix[1:] for suffix in (*PICTURE_SUFFIXES, *LABEL_SUFFIXES)}
# Neither pictures nor labels of classes: files of Cityscapes, folders of Pascal VOC and labelme.
OTHER_ENDS = re.compile(r'(_color|_instanceIds|_instanceTrainIds|_polygons)$')
OTHER_FOLDERS = re.compile(r'(segmentationobject|visualization)', re.I)


def pair_labels(
    pictures: Sequence[Path], labels: Optional[Sequence[Path]] = None
) -> tuple[dict[Path, Path], list[Path], list[Path]]:
    """Pair each picture with the labels of its name, split and folders.

    Args:
        pictures: relative paths. Without `labels`, they include the labels.

    Returns:
        The labels of each picture, pictures without labels, and labels without a picture.

    Raises:
        DataError: if a picture has several labels, or two pictures share them.
    """
    pictures = [path for path in pictures if not _is_other(path)]
    if labels is None:
        labels = sorted({*pictures} - {*leave_out_labels(pictures)})
        if not labels:  # x.jpg and x.png, in one folder
            stems = {path.with_suffix('') for path in pictures if path.suffix.lower() != '.png'}
            labels = [path for path in pictures if path.suffix.lower() == '.png' and path.with_suffix('') in stems]
        pictures = sorted(set(pictures) - set(labels))
    labels = [path for path in labels if path.suffix.lower() in LABEL_SUFFIXES and not _is_other(path)]
    equal = set(map(_make_key, pictures)) & set(map(_make_key, labels))  # whole names come first
    key_of = {path: _make_key(path, PICTURE_ENDS, equal) for path in pictures}
    key_of.update((path, _make_key(path, LABEL_ENDS, equal)) for path in labels)
    by_key: dict[tuple[str, ...], list[Path]] = {}
    for path in labels:
        by_key.setdefault(key_of[path], []).append(path)
    pairable = find_pairable_tags(pictures, labels)
    owners: dict[Path, Path] = {}
    pairs: dict[Path, Path] = {}
    for picture in pictures:
        paths = by_key.get(key_of[picture], [])
        paths = [path for path in paths if find_tags(path) in pairable[find_tags(picture)]]
        # Cityscapes: several files for a picture, the classes for training in TrainIds
        paths = [path for path in paths if 'TrainIds' in path.stem] or paths
        if len(paths) > 1:
            raise DataError(f'the picture {picture} has several files of labels: {", ".join(map(str, paths[:3]))}')
        if paths and owners.setdefault(paths[0], picture) != picture:
            raise DataError(
                f'{owners[paths[0]]} and {picture} share the labels {paths[0]}: give each a name and labels of its own'
            )
        if paths:
            pairs[picture] = paths[0]
    # With Cityscapes's several files of labels
    used = {(key_of[path], find_tags(path)) for path in owners}
    unused = [path for key, paths in by_key.items() for path in paths if (key, find_tags(path)) not in used]
    return pairs, [picture for picture in pictures if picture not in pairs], unused


def _is_other(path: Path) -> bool:
    return bool(OTHER_ENDS.search(path.stem) or any(map(OTHER_FOLDERS.search, path.parent.parts)))


def is_label(path: Path) -> bool:
    """Return whether a file is named, or in a folder named, as labels of pixels, classes or objects."""
    is_named = bool(LABEL_ENDS.search(path.stem)) or _is_other(path) or _is_in_label_folder(path)
    return path.suffix.lower() in LABEL_SUFFIXES and is_named


def _is_in_label_folder(path: Path) -> bool:
    named = [words for part in path.parent.parts if (words := set(list_words(part)) & (LABEL_WORDS | PICTURE_WORDS))]
    return bool(named and named[-1] & LABEL_WORDS)


def leave_out_labels(pictures: Sequence[Path]) -> Sequence[Path]:
    """Return the pictures that are no labels: see `is_label`. If all are named as labels, all are pictures.

    A name alone makes a label only of another picture: x_L.png is a picture beside x_R.png, and a label beside x.png.
    """
    named = {picture for picture in pictures if is_label(picture)}
    others = {*pictures} - named
    stems = {stem for path in others for stem in (path.stem, PICTURE_ENDS.sub('', path.stem))}
    labels = {
        path for path in named if _is_in_label_folder(path) or _is_other(path) or LABEL_ENDS.sub('', path.stem) in stems
    }
    return [picture for picture in pictures if picture not in labels] or pictures


def _make_key(
    path: Path, ends: Optional[re.Pattern[str]] = None, whole_keys: Collection[tuple[str, ...]] = ()
) -> tuple[str, ...]:
    """Return the split, the other folders, and the name: equal for a picture and its labels.

    Args:
        ends: the end of the name is left out, unless the key is one of `whole_keys`.
    """
    folders = [part.lower() for part in path.parent.parts if not ROLES & set(list_words(part))]
    key = (find_folder_split(path) or '', *folders, path.stem)
    return key if ends is None or key in whole_keys else (*key[:-1], ends.sub('', path.stem))


def find_tags(path: Path) -> FolderTags:
    """Return the words of a path's folders: see `FolderTags`."""
    folders = [part.lower() for part in path.parent.parts if ROLES & set(list_words(part))]
    return tuple(word for folder in folders for word in WORDS.findall(folder) if word not in ROLES | SUFFIX_WORDS)


def find_pairable_tags(pictures: Iterable[Path], labels: Iterable[Path]) -> dict[FolderTags, set[FolderTags]]:
    """Return the words of the labels that pictures may have, by the words of the pictures.

    Labels with the words of the pictures are theirs. If there are none, pictures may have all labels but those with the
    words of other pictures, and those with another number: label_images_semantic belongs to original_images, and
    labels_2020 not to images_2021.
    """
    picture_tags, label_tags = set(map(find_tags, pictures)), set(map(find_tags, labels))

    def allows(words: FolderTags, others: FolderTags) -> bool:
        numbers, other_numbers = ([word for word in tags if word.isdecimal()] for tags in (words, others))
        return others not in picture_tags and (not numbers or not other_numbers or numbers == other_numbers)

    return {
        words: {words} if words in label_tags else {others for others in label_tags if allows(words, others)}
        for words in picture_tags
    }
