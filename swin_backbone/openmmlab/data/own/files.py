"""The files of a data set: what lies below a folder, and for training or validation by its name."""

import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional, TypeVar, Union

from ....outputs import RECORD, RESULTS, Outputs
from ...errors import DataError

MAX_FILES = 2_000_000
SPLITS = {
    'train': ('train', 'training', 'trn'),
    'val': ('val', 'valid', 'validation', 'dev'),
    'test': ('test', 'testing'),
}
FOR_VAL = 0.2  # the share of pictures that a split takes for validation
NAMES = ('classes.txt', 'labels.txt', 'class_names.txt', 'obj.names')
NUMBERED = re.compile(r'(\d+)[\s:,]+(\S.*)')

T = TypeVar('T')


def files_below(root: Path) -> tuple[list[Path], list[str]]:
    """List the files below a folder, relative to it and sorted. Links are followed.

    Hidden files, folders called work_dirs, folders with a mark of results and files that a command wrote are left out.

    Returns:
        The files, and the results that were left out: folders, and numbers of files.

    Raises:
        DataError: if there are more than MAX_FILES.
    """
    files: list[Path] = []
    results: list[str] = []
    written: set[Path] = set()
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        if RESULTS in names and Path(folder) != root:
            results.append(str(Path(folder).relative_to(root)))
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith('.') and name != 'work_dirs')
        files += [Path(folder, name).relative_to(root) for name in names if not name.startswith('.')]
        if len(files) > MAX_FILES:
            raise DataError(f'{root} has more than {MAX_FILES:,} files: name the folder that holds the data alone')
        if RECORD in names:
            written.update(Path(os.path.relpath(path, root)) for path in Outputs(folder).own_files())
    written &= set(files)
    if written:
        results.append(f'{len(written)} files, as {min(written)}')
    return sorted(path for path in files if path not in written), results


def words_of(name: str) -> list[str]:
    """The words in the name of a file or folder, lower case: `images_train2017` has images and train."""
    return re.findall(r'[a-z]+', name.lower())


def split_of(path: Path) -> Optional[str]:
    """'train', 'val' or 'test', as the last part of a path that says so does, or its file's name; None if none does."""
    for part in (path.stem, *reversed(path.parent.parts)):
        for split, words in SPLITS.items():
            if any(word in words for word in words_of(part)):
                return split
    return None


def folder_split(path: Path) -> Optional[str]:
    """As `split_of`, by the folders alone: a picture may be called train.jpg."""
    return split_of(path.parent / '-')


def split_by_chance(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names for training and a fifth of them for validation: the same ones each time, on every machine.

    The order is that of a checksum of each name, so that further pictures move few of the others.

    Raises:
        DataError: if there are fewer than two.
    """
    names = sorted(set(names))
    if len(names) < 2:
        raise DataError(f'to hold out pictures for validation there must be two or more, got {len(names)}')
    drawn = sorted(names, key=lambda name: (zlib.crc32(name.encode('utf-8', 'surrogateescape')), name))
    number = max(1, round(FOR_VAL * len(names)))
    held_out = set(drawn[:number])
    return [name for name in names if name not in held_out], sorted(held_out)


def train_and_val(by_split: Mapping[Optional[str], Sequence[T]]) -> tuple[list[T], list[T]]:
    """What is trained on and validated on: without a validation set the test set takes its place.

    What is in no split is trained on. The second is empty where a split has to be made.
    """
    train = [*by_split.get('train', ()), *by_split.get(None, ())]
    val = list(by_split.get('val') or by_split.get('test') or ())
    return (train, val) if train else (val, [])


def class_names(folders: Iterable[Path]) -> tuple[Optional[list[str]], Optional[Path]]:
    """The names of the classes, one a line of a file of NAMES, and the file; None if no folder has one."""
    for folder in folders:
        for name in NAMES:
            path = folder / name
            if path.is_file():
                return read_names(path), path
    return None, None


def read_names(path: Path) -> list[str]:
    """Names of classes, one a line; `0 road` and `0: road` are taken too, if the numbers count from 0.

    Raises:
        DataError: if it cannot be read, or a name stands in it twice.
    """
    try:
        text = path.read_text(encoding='utf-8-sig')
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f'{path} cannot be read as the names of classes: {error}') from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    numbered = [match for line in lines if (match := NUMBERED.fullmatch(line))]
    if lines and len(numbered) == len(lines) and [int(match[1]) for match in numbered] == list(range(len(lines))):
        lines = [match[2].strip() for match in numbered]
    require_distinct(lines, path)
    return lines


def require_distinct(names: Sequence[str], where: Union[str, Path]) -> None:
    """See that there are names of classes, each once.

    Raises:
        DataError: if not.
    """
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names or twice:
        raise DataError(f'{where} takes the names of the classes, each once, got {twice[0] + " twice" if twice else 0}')
