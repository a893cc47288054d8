"""Pictures for classifiers: a folder for each class, or lists of names and numbers, as ImageNet's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from ....checks import DataError
from ..text_files import read_text
from .folder import DataFolder, format_left_out
from .records import UNSPLIT, GivenSplit, Records
from .splits import find_folder_split, find_split, index_tails, match_name, read_split_lists

ClassOfPicture = dict[Path, Optional[str]]  # None: the picture is in no folder of a class


def read(folder: DataFolder) -> Optional[Records]:
    """Read a folder of pictures for each class, inside the folders of a split or not.

    Lists called train, val or test, with a name and a number in each line, take precedence.
    """
    if folder.only_file is not None:
        return None
    by_split = _read_folders(folder.pictures)
    lists = _read_lists(folder)
    named, source = folder.read_class_names()
    if lists:
        numbers = named or _find_names(by_split, lists)
        if unnamed := sorted({number for numbered in lists.values() for number in numbered.values()} - {*numbers}):
            source = source or 'the list for training'
            raise DataError(f'{source} has no class {unnamed[0]}, of {[*numbers]}, as a list has')
        for split, numbered in lists.items():
            by_split[split] = {path: numbers[number] for path, number in numbered.items()}
        names = list(numbers.values())
    else:
        used_names = {name for class_of in by_split.values() for name in class_of.values() if name}
        names = list(named.values()) if named else sorted(used_names)
        if unknown := used_names - set(names):
            raise DataError(f'{source} has no class {min(unknown)!r}, which is a folder of pictures')
    if len(names) < 2:
        return None
    class_of_picture = {
        path: name for class_of in by_split.values() for path, name in class_of.items() if name in names
    }
    unclassified = [path for class_of in by_split.values() for path in class_of if path not in class_of_picture]
    lines = format_left_out('pictures in no folder of a class', unclassified)
    layout = 'lists of pictures and classes' if lists else 'a folder for each class'
    given_split = _find_splits(folder, by_split, class_of_picture)
    return Records(layout, names, {UNSPLIT: class_of_picture}, given_split, lines)


def _read_folders(pictures: Iterable[Path]) -> dict[Optional[str], ClassOfPicture]:
    """Return the classes of pictures by split: None without folders of a split.

    A class is the first folder below that of a split, or else below the common folder. There are splits if a folder of
    training has folders inside, and another folder has the name of a split: a class may be called train.
    """
    parts = {picture: picture.parent.parts for picture in pictures}

    def list_tops() -> set[str]:
        return {folders[0] for folders in parts.values() if folders}

    while len(list_tops()) == 1 and any(len(folders) > 1 for folders in parts.values()):
        parts = {picture: folders[1:] for picture, folders in parts.items()}
    split_by_top = {top: split for top in list_tops() if (split := find_split(Path(top)))}
    deep = {split_by_top.get(folders[0]) for folders in parts.values() if len(folders) > 1}
    if 'train' not in deep or len(split_by_top) < 2:
        return {None: {picture: next(iter(folders), None) for picture, folders in parts.items()}}
    unsplit = {picture: None for picture, folders in parts.items() if not split_by_top.keys() & {*folders[:1]}}
    by_split: dict[Optional[str], ClassOfPicture] = {'train': dict(unsplit)}
    for top, split in split_by_top.items():
        folders_inside = {picture: folders[1:] for picture, folders in parts.items() if folders[:1] == (top,)}
        if {folders[:1] for folders in folders_inside.values()} == {(top,)}:  # training_set/training_set/cat
            folders_inside = {picture: folders[1:] for picture, folders in folders_inside.items()}
        by_split.setdefault(split, {}).update(
            {picture: next(iter(folders), None) for picture, folders in folders_inside.items()}
        )
    return by_split


def _read_lists(folder: DataFolder) -> dict[str, dict[Path, int]]:
    """Return the numbers of pictures by split, of lists with a name and a number in each line."""
    tails = index_tails(folder.pictures)
    lists: dict[str, dict[Path, int]] = {}
    for path in folder.find_by_suffix('.txt'):
        split = find_split(Path(path.name))
        rows = [text.rpartition(' ') for text in map(str.strip, read_text(path).splitlines()) if text] if split else []
        if split is None or not rows or not all(name and number.isdecimal() for name, _, number in rows):
            continue
        for name, _, number in rows:
            picture = match_name(f'{split}/{name}', tails)
            if picture is None:
                raise DataError(f'{path}: {name!r} is the name of no picture below {folder.root}, or of several')
            lists.setdefault(split, {})[picture] = int(number)
    return lists


def _find_names(by_split: dict[Optional[str], ClassOfPicture], lists: dict[str, dict[Path, int]]) -> dict[int, str]:
    """Return the names of numbers: those of the pictures' folders, or else the numbers."""
    if 'train' not in lists:  # folders for training, and a list for validation
        return dict(enumerate(sorted({name for class_of in by_split.values() for name in class_of.values() if name})))
    folders: dict[int, set[str]] = {}
    for picture, number in lists['train'].items():
        folders.setdefault(number, set()).add(picture.parent.name)
    names = [min(folders[number]) for number in sorted(folders)]
    if max(map(len, folders.values())) > 1 or len(set(names)) < len(names):
        return {number: f'class {number}' for number in range(max(folders) + 1)}
    return dict(zip(sorted(folders), names))


def _find_splits(
    folder: DataFolder, by_split: dict[Optional[str], ClassOfPicture], class_of_picture: dict[Path, str]
) -> GivenSplit:
    """Return the pictures of each split; none if there are only pictures for training."""
    if None in by_split:
        given = read_split_lists(folder, list(class_of_picture))
        if given.pictures or {*map(find_folder_split, class_of_picture)} != {'test'}:
            return given
        return GivenSplit(dict(test=list(class_of_picture)), 'the names of folders or lists')
    lists = {str(split): [path for path in paths if path in class_of_picture] for split, paths in by_split.items()}
    lists = {split: paths for split, paths in lists.items() if paths}
    return GivenSplit() if set(lists) == {'train'} else GivenSplit(lists, 'the names of folders or lists')
