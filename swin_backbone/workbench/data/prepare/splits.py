"""Pictures for training, validation and test: by lists, by the names of folders, or drawn."""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional
from unicodedata import normalize

from ....checks import DataError
from ..media import PICTURE_SUFFIXES
from ..text_files import read_text
from .folder import DataFolder, format_left_out, format_line, is_yolo
from .records import GivenSplit, PicturesBySplit

SPLIT_OF = {  # split by a word of a name
    **dict.fromkeys(('train', 'training', 'trn'), 'train'),
    **dict.fromkeys(('val', 'valid', 'validation', 'dev'), 'val'),
    **dict.fromkeys(('test', 'testing'), 'test'),
}
SPLITS = ('train', 'val', 'test')
VAL_SHARE = 0.2  # share of the pictures, if the split is drawn
SAME_PICTURES_NOTE = 'names the same pictures for training and for validation'
DRAWN_NOTE = 'a fifth of the pictures is for validation, always the same pictures'
TEST_NOTE = 'a test set alone: a test takes all of it; a training holds out a fifth, and tests on that'
IMAGE_SETS = 'imagesets'  # the folder of Pascal VOC's lists
COPY = '.rf.'  # comes before the hash of an augmented copy in Roboflow's names
Draw = Callable[[list[Path]], tuple[list[Path], list[Path]]]  # returns pictures for training and for validation


def list_words(name: str) -> list[str]:
    """Return the words of a name in lower case: `images_train2017` has images and train."""
    return re.findall(r'[a-z]+', name.lower())


def find_split(path: Path) -> Optional[str]:
    """Return 'train', 'val' or 'test' by the file's name or the last folder with such a word, or None."""
    parts = (path.stem, *reversed(path.parent.parts))
    return next((SPLIT_OF[word] for part in parts for word in list_words(part) if word in SPLIT_OF), None)


def find_folder_split(path: Path) -> Optional[str]:
    """Return the split only by the folders: a picture may be called train.jpg."""
    return find_split(path.parent / '-')


def assign_splits(by_split: Mapping[Optional[str], Sequence[Path]]) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files for training, validation and test.

    Files of no split are for training. Without files for validation, the files of the test are for validation. Without
    either, the second list is empty, and a split has to be drawn.
    """
    train = [*by_split.get('train', ()), *by_split.get(None, ())]
    val, test = (list(by_split.get(split, ())) for split in ('val', 'test'))
    if not train:
        return (val, [], test) if val else (test, [], [])
    return (train, val, test) if val else (train, test, [])


def draw_split(pictures: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return pictures for training, and a fifth of them for validation: the same on every machine.

    Pictures are ordered by a checksum of their names. Further pictures change the split of few old pictures.
    Roboflow's augmented copies of a picture stay together.

    Raises:
        DataError: if there are fewer than two pictures.
    """
    sources = {picture: picture.as_posix().partition(COPY)[0] for picture in sorted(set(pictures))}
    order = sorted(set(sources.values()), key=lambda name: (zlib.crc32(name.encode('utf-8', 'surrogateescape')), name))
    if len(order) < 2:
        raise DataError(f'to hold out pictures for validation there must be two or more, got {len(order)}')
    val = set(order[: max(1, round(VAL_SHARE * len(order)))])
    train = [picture for picture, source in sources.items() if source not in val]
    return train, [picture for picture, source in sources.items() if source in val]


def draw_by_class(class_of_picture: Mapping[Path, str], pictures: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return pictures for training, and a fifth of each class for validation: see `draw_split`."""
    train: list[Path] = []
    val: list[Path] = []
    by_class: dict[str, list[Path]] = {}
    for path in pictures:
        by_class.setdefault(class_of_picture[path], []).append(path)
    for paths in by_class.values():
        class_train, class_val = draw_split(paths) if len(paths) > 1 else (paths, [])
        train += class_train
        val += class_val
    return (train, val) if val else draw_split(train)


def split_pictures(pictures: Sequence[Path], given: GivenSplit, draw: Draw) -> tuple[PicturesBySplit, list[str]]:
    """Return pictures by split, and lines of the summary. A test split is optional.

    Without a given split, the names of folders decide, and without these a checksum.

    Args:
        pictures: those with annotations.
        given: the split by lists or names of folders, also of pictures without annotations.
        draw: draws pictures for validation where none are named.

    Raises:
        DataError: if a split has none of the pictures, or some pictures are both for training and for validation.
    """
    lines: list[str] = []
    source = given.source
    by_split: dict[Optional[str], list[Path]] = {}
    if given.pictures:
        for split, listed in given.pictures.items():
            chosen = set(listed)
            by_split[split] = [picture for picture in pictures if picture in chosen]
            if split != 'test' and not by_split[split]:
                raise DataError(f'{source} names no picture with annotations for {split}, of {len(pictures)} such')
        all_listed = {picture for listed in given.pictures.values() for picture in listed}
        unlisted = [picture for picture in pictures if picture not in all_listed]
        if 'train' not in given.pictures:
            by_split['train'] = unlisted
        else:
            lines += format_left_out('pictures that no list names', unlisted)
        lines.append(format_line('split', f'by {source}'))
    else:
        for picture in pictures:
            by_split.setdefault(find_folder_split(picture), []).append(picture)
    train, val, test = assign_splits(by_split)
    is_overruled = are_same_pictures(train, val, source)
    if is_overruled:
        lines[-1] = format_line('overruled', f'{source} {SAME_PICTURES_NOTE}')
    if [split for split, chosen in by_split.items() if chosen] == ['test']:
        test = train
        lines.append(format_line('test', TEST_NOTE))
    if is_overruled or not val:
        train, val = draw(train)
        lines.append(format_line('split', DRAWN_NOTE))
    if set(test) == set(val):  # as in a data.yaml with the same folder twice
        test = []
    return dict(train=train, val=val, **(dict(test=test) if test else {})), lines


def are_same_pictures(train: Iterable[Path], val: Iterable[Path], source: str) -> bool:
    """Return whether the pictures for training and for validation are the same.

    Raises:
        DataError: if they share some pictures, and not all.
    """
    train, val = set(train), set(val)
    shared = train & val
    if shared and train != val:
        raise DataError(
            f'{source} names {len(shared)} pictures for training and for validation, as {min(shared)}: name each once'
        )
    return bool(shared)


def read_split_lists(folder: DataFolder, pictures: Sequence[Path], subject: str = '') -> GivenSplit:
    """Return the pictures named in files train.txt, val.txt or test.txt.

    Args:
        pictures: all, relative to the root.
        subject: the preferred folder below ImageSets: 'Main' or 'Segmentation'.

    Raises:
        DataError: if a list of ImageSets names no picture, or lists in several folders differ.
    """
    tails = index_tails(pictures)
    by_folder: dict[Path, PicturesBySplit] = {}
    missing = 0
    for path in folder.find_by_suffix('.txt'):
        name = path.stem.lower()
        split = 'train' if name == 'trainval' else SPLIT_OF.get(name.rstrip('0123456789'))  # also train2017
        texts = read_text(path).splitlines() if split else []
        if split is None or is_yolo(texts):  # labels of a picture called train.jpg
            continue
        matches = match_lines(texts, tails)
        if not matches and IMAGE_SETS in map(str.lower, path.parts):
            raise DataError(f'{path} names no picture below {folder.root}, as {texts[:1]}')
        lists = by_folder.setdefault(path.parent, {})
        if matches:
            missing += sum(map(bool, map(str.strip, texts))) - len(matches)
        if matches and (name != 'trainval' or 'train' not in lists):
            lists[split] = matches
    by_folder = {path: lists for path, lists in by_folder.items() if lists}
    preferred = [path for path in by_folder if subject and path.name.lower() == subject.lower()]
    sources = preferred or list(by_folder)
    if not sources:
        return GivenSplit()
    if any(by_folder[path] != by_folder[sources[0]] for path in sources):
        raise DataError(f'the lists in {" and ".join(map(str, sources[:3]))} differ: keep those in one folder')
    strays = f', in which {missing} names are of no picture' if missing else ''
    return GivenSplit(by_folder[sources[0]], f'the lists in {sources[0]}{strays}')


def index_tails(pictures: Iterable[Path]) -> dict[str, list[Path]]:
    """Index pictures by each tail of their path without suffix: a/b/c.jpg by a/b/c, b/c and c.

    Accents are one character: archives of macOS have two.
    """
    tails: dict[str, list[Path]] = {}
    for picture in pictures:
        parts = picture.with_suffix('').parts
        for first in range(len(parts)):
            tails.setdefault(normalize('NFC', '/'.join(parts[first:])), []).append(picture)
    return tails


def match_lines(lines: Iterable[str], tails: Mapping[str, list[Path]]) -> list[Path]:
    """Return the pictures named by lines: a path or a name, with or without suffix, at the begin of each line."""
    matched = []
    for text in filter(None, map(str.strip, lines)):
        picture = match_name(text, tails) or match_name(text.split()[0], tails)
        if picture is not None:
            matched.append(picture)
    return matched


def match_name(name: str, tails: Mapping[str, list[Path]]) -> Optional[Path]:
    """Return the single picture with the longest end of a path or name, or None."""
    path = Path(normalize('NFC', name).replace('\\', '/'))
    suffix = path.suffix if path.suffix.lower() in PICTURE_SUFFIXES else ''
    parts = (path.with_suffix('') if suffix else path).parts
    for first in range(len(parts)):
        pictures = tails.get('/'.join(parts[first:]), [])
        pictures = [picture for picture in pictures if picture.suffix == suffix] or pictures
        if len(pictures) == 1:
            return pictures[0]
    return None
