"""Labels of pixels: values or colours of a user's files, and their classes."""

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Optional

import numpy as np

from ....checks import DataError, list_first
from ..check_labels import ANY_VALUE, describe_values, read_colours, read_label
from ..media import read_picture_size
from .folder import DataFolder, drop_ignored_mark, format_left_out, format_line
from .pairs import LABEL_SUFFIXES, pair_labels
from .records import UNSPLIT, LabelFile, Records
from .splits import read_split_lists

VOID_NAMES = {'void', 'ignore', 'ignored', 'unlabelled', 'unlabeled', 'unlabel', 'dontcare'}
IGNORED_LABEL = 255  # the value of ignored pixels, which mmseg's transforms write too
MAX_CLASSES = 255  # in 8 bits, beside the ignored value
VOC_BORDER = 0xE0E0C0  # the colour of Pascal VOC's borders between objects, which are ignored
MAX_LABELS = 2000  # files whose values are read; of more, so many by chance


# Classes, the label of each picture, lines of the summary
ClassesAndLabels = tuple[list[str], dict[Path, LabelFile], list[str]]


def read(folder: DataFolder) -> Optional[Records]:
    """Read a file of labels for each picture, with lists of a split in ImageSets/Segmentation."""
    if folder.only_file is not None:
        return None
    labels = None
    pictures = folder.pictures
    if folder.ann_root != folder.root:
        labels = [path for path in folder.ann_files if path.suffix.lower() in LABEL_SUFFIXES]
        if folder.root in folder.ann_root.parents:
            inside = folder.ann_root.relative_to(folder.root)
            pictures = [picture for picture in pictures if inside not in picture.parents]
    pairs, unlabelled, unused = pair_labels(pictures, labels)
    if not pairs:
        return None
    classes, label_of_picture, lines = _find_classes(folder, pairs)
    lines += [
        *format_left_out('pictures without labels', unlabelled),
        *format_left_out('files of labels without a picture', unused),
    ]
    given_split = read_split_lists(folder, [*pairs, *unlabelled], 'Segmentation')
    return Records('pictures and labels', classes, {UNSPLIT: label_of_picture}, given_split, lines)


def _find_classes(folder: DataFolder, pairs: dict[Path, Path]) -> ClassesAndLabels:
    """Find the classes of labels by their colours or names or, without names, by their values."""
    colours = folder.read_labelmap()
    label_files = [folder.ann_root / label for label in pairs.values()]
    if colours and read_colours(label_files[0]) is not None:
        found_values = _find_values(folder, pairs, in_colours=True)
        named = _index_colours(colours)
        lines = [format_line('labels', 'colours of labelmap.txt'), *_describe_unused(named, found_values, len(pairs))]
        return _number_classes(pairs, named, 'labelmap.txt', lines, in_colours=True)
    found_values = _find_values(folder, pairs, in_colours=False)
    names, source = folder.read_class_names(sorted({file.parent for file in label_files}), may_have_gaps=True)
    if names is None and colours:
        names, source = dict(enumerate(colours)), 'labelmap.txt'
    names = names and drop_ignored_mark(names)
    lines = []
    if len(pairs) > MAX_LABELS:
        lines.append(format_line('labels', f'of the values in {MAX_LABELS} of {len(pairs)} files'))
    values = sorted(found_values - {IGNORED_LABEL})
    if found_values == {0, IGNORED_LABEL} and (names is None or list(names) == [0, 1]):
        names = dict(zip((0, IGNORED_LABEL), names.values() if names else ('background', 'foreground')))
        lines.append(format_line('labels', '0 and 255: black and white masks, of which 255 becomes 1'))
    elif names is None:
        if values != list(range(len(values))):
            last = values[-1]
            raise DataError(
                f'the labels in {folder.ann_root} have the values {describe_values(values)}, and not 0 to '
                f'{len(values) - 1}: name them in a file classes.txt there, a value and a name in each line, as '
                f"'{last} road'; or, if some classes have no pixels, pass --classes NAME,NAME,... for 0 "
                f'to {last}'
            )
        names = {value: f'class {value}' for value in range(max(len(values), 2))}
        lines.append(format_line('', 'called by their values: a classes.txt there, a name in each line, names them'))
    elif unnamed := [value for value in values if value not in names]:
        raise DataError(f'{source} names {len(names)} classes, and the labels have the value {unnamed[-1]}')
    elif list(names) != list(range(len(names))):
        lines.append(format_line('labels', f'the values {describe_values(list(names))}, numbered from 0'))
    return _number_classes(pairs, names, source, [*lines, *_describe_unused(names, found_values, len(pairs))])


def _index_colours(colours: Mapping[str, Optional[int]]) -> dict[int, str]:
    """Return the names of colours. Raises DataError if a class has none, or that of another."""
    names: dict[int, str] = {}
    for name, colour in colours.items():
        if colour is None or colour in names:
            other = 'none' if colour is None else f'that of {names[colour]}'
            raise DataError(f'labelmap.txt takes a colour of its own for each class, {name} has {other}')
        names[colour] = name
    return names


def _describe_unused(names: Mapping[int, str], found_values: Collection[int], num_files: int) -> list[str]:
    """Return the line of the summary on classes without pixels in the files that were read; no line without any."""
    unused = [name for value, name in names.items() if value not in found_values and not _is_void(name)]
    read = ' in the files that were read' if num_files > MAX_LABELS else ''
    return [format_line('warning', f'no pixel of the classes {list_first(unused)}{read}')] if unused else []


def _number_classes(
    pairs: dict[Path, Path], names: dict[int, str], source: str, lines: list[str], in_colours: bool = False
) -> ClassesAndLabels:
    """Number the classes in the order of their values, without those called void.

    Args:
        names: by value, or by colour.
        lines: lines of the summary so far.
    """
    ignored = VOC_BORDER if in_colours else IGNORED_LABEL
    void = [value for value, name in names.items() if _is_void(name)]
    kept_values = [value for value in names if value not in void]
    if not 0 < len(kept_values) <= MAX_CLASSES:
        raise DataError(
            f'{source} names {len(kept_values)} classes, and labels take 1 to {MAX_CLASSES}, of the values 0 to '
            f'{MAX_CLASSES - 1}: {IGNORED_LABEL} is the value of ignored pixels'
        )
    class_of_value = {
        ignored: IGNORED_LABEL,
        **{value: index for index, value in enumerate(kept_values)},
        **dict.fromkeys(void, IGNORED_LABEL),
    }
    if void:
        border = '' if ignored in kept_values else ', and 255'
        lines = [*lines, format_line('ignored', f'{", ".join(names[value] for value in void)} of {source}{border}')]
    if len(kept_values) == 1:
        lines = [*lines, format_line('one class', 'a segmentor tells classes apart, and learns nothing from one')]
    label_of_picture = {picture: LabelFile(path, class_of_value, in_colours) for picture, path in pairs.items()}
    return [names[value] for value in kept_values], label_of_picture, lines


def _is_void(name: str) -> bool:
    return name.lower().strip('_') in VOID_NAMES


def _find_values(folder: DataFolder, pairs: dict[Path, Path], in_colours: bool) -> set[int]:
    """Return the values or colours of the labels, at most of `MAX_LABELS` files."""
    drawn = sorted(random.Random(0).sample(list(pairs), min(len(pairs), MAX_LABELS)))
    found_values: set[int] = set()
    for picture in drawn:
        try:
            size = read_picture_size(folder.root / picture)
        except OSError:  # named later, or left out by --skip-unreadable
            continue
        path = folder.ann_root / pairs[picture]
        values = read_colours(path) if in_colours else read_label(path, ANY_VALUE, size)
        found_values.update([] if values is None else np.unique(values).tolist())
    return found_values
