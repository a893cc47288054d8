"""Labels of pixels: values or colours of a user's files, their classes, and converted files."""

import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Optional

import cv2
import numpy as np

from ....openmmlab.errors import DataError
from ..check_labels import ANY_VALUE, describe_values, read_colours, read_label
from ..media import picture_size
from .folder import DataFolder, OwnData, class_line, line, list_folders
from .pairs import LABEL_SUFFIXES, pair_labels
from .splits import read_split_lists, split_pictures

VOID_NAMES = {'void', 'ignore', 'ignored', 'unlabelled', 'unlabeled', 'unlabel', 'dontcare'}
IGNORED = 255
VOC_BORDER = 0xE0E0C0  # the colour of Pascal VOC's borders between objects, which are ignored
MAX_LABELS = 2000  # files whose values are read; of more, so many by chance


class Classes(NamedTuple):
    """The classes of labels.

    Args:
        names: in the order of the values.
        ignore_index: the value of ignored pixels.
        reduce_zero_label: 0 is ignored too, and 1 is the first class.
        places: class of each value of the files; None: files need no conversion.
        in_colours: values of the files are colours, 0xRRGGBB.
    """

    names: list[str]
    ignore_index: int = IGNORED
    reduce_zero_label: bool = False
    places: Optional[dict[int, int]] = None
    in_colours: bool = False


def find_labels(folder: DataFolder) -> Optional[OwnData]:
    """Recognise a file of labels for each picture, with lists of a split in ImageSets/Segmentation."""
    if folder.one_file is not None:
        return None
    labels, pictures = None, folder.pictures
    if folder.ann_root != folder.root:
        labels = [path for path in folder.ann_files if path.suffix.lower() in LABEL_SUFFIXES]
        if folder.root in folder.ann_root.parents:
            inside = folder.ann_root.relative_to(folder.root)
            pictures = [picture for picture in pictures if inside not in picture.parents]
    pairs, unlabelled, unused = pair_labels(pictures, labels)
    if not pairs:
        return None
    classes, lines = _classes_of(folder, pairs)
    if unlabelled:
        lines.append(line('left out', f'{len(unlabelled)} pictures without labels, as {unlabelled[0]}'))
    if unused:
        lines.append(line('left out', f'{len(unused)} files of labels without a picture, as {unused[0]}'))
    if classes.places is not None:
        pairs = {picture: _write_label(folder, picture, label, classes) for picture, label in pairs.items()}
        lines.append(line('written', f'{folder.outputs}/labels, the values of the classes'))
    split = split_pictures(list(pairs), *read_split_lists(folder, [*pairs, *unlabelled], 'Segmentation'))
    own: dict[str, Any] = dict(root=str(folder.root), classes=tuple(classes.names), ignore_index=classes.ignore_index)
    head = [f'data in {folder.root}: pictures and labels']
    for phase, half in split.parts().items():
        items: list[dict[str, Any]] = [
            dict(
                img_path=picture.as_posix(),
                seg_map_path=str((folder.ann_root / pairs[picture]).absolute()),
                reduce_zero_label=classes.reduce_zero_label,
                label_map=None,
                seg_fields=[],
            )
            for picture in half
        ]
        own[phase] = dict(pairs=str(folder.write(f'{phase}.json', dict(metainfo={}, data_list=items))))
        folders = list_folders([pairs[picture] for picture in half])
        head.append(line(phase, f'{len(half)} pictures in {list_folders(half)}', f'labels in {folders}'))
    return OwnData(own, [*head, class_line(classes.names), *lines, *split.lines])


def _classes_of(folder: DataFolder, pairs: dict[Path, Path]) -> tuple[Classes, list[str]]:
    """Return the classes of labels by their names or, without names, by their values; and lines of the report.

    A first or last class called void or unlabelled is neither trained nor tested.

    Raises:
        DataError: if a value or colour has no name, or values without names do not count from 0.
    """
    colours = folder.labelmap()
    labels = [folder.ann_root / label for label in pairs.values()]
    if colours and read_colours(labels[0]) is not None:
        places = {VOC_BORDER: IGNORED, **{colour: place for place, colour in enumerate(colours.values())}}
        return Classes(list(colours), places=places, in_colours=True), [line('labels', 'colours of labelmap.txt')]
    counts, number = _count_values(folder, pairs)
    names, source = folder.class_names(sorted({label.parent for label in labels}), sparse=True)
    if names is None and colours:
        names, source = dict(enumerate(colours)), 'labelmap.txt'
    values = sorted(set(counts) - {IGNORED})
    if set(counts) == {0, IGNORED} and not (names and set(names) == {0, IGNORED}):
        binary = list(names.values()) if names and len(names) == 2 else ['background', 'foreground']
        lines = [line('labels', '0 and 255: black and white masks, of which 255 becomes 1')]
        return Classes(binary, places={0: 0, IGNORED: 1}), lines
    lines = [line('labels', f'of the values in {number} of {len(pairs)} files')] if number < len(pairs) else []
    if names is None:
        if values != list(range(len(values))):
            last = values[-1]
            raise DataError(
                f'the labels in {folder.ann_root} have the values {describe_values(values)}, and not 0 to '
                f'{len(values) - 1}: name them in a file classes.txt there, a value and a name in each line, as '
                f"'{last} road'; or, if some classes have no pixels, pass --classes NAME,NAME,... for 0 "
                f'to {last}'
            )
        lines.append(line('', 'called by their values: a classes.txt there, a name in each line, names them'))
        return Classes([f'class {value}' for value in range(max(len(values), 2))]), lines
    if unnamed := [value for value in values if value not in names]:
        raise DataError(f'{source} names {len(names)} classes, and the labels have the value {unnamed[-1]}')
    classes = Classes(list(names.values()))
    if list(names) != list(range(len(names))):
        places = {IGNORED: IGNORED, **{value: place for place, value in enumerate(names)}}
        classes = classes._replace(places=places)
        lines.append(line('labels', f'the values {describe_values(list(names))}, numbered from 0'))
    first, last = names[min(names)].lower() in VOID_NAMES, names[max(names)].lower() in VOID_NAMES
    if first:
        classes = classes._replace(names=classes.names[1:], reduce_zero_label=True)
    elif last:
        classes = classes._replace(names=classes.names[:-1], ignore_index=len(names) - 1)
    if first or last:
        void = min(names) if first else max(names)
        lines.append(line('ignored', f'the value {void}, which {source} calls void, and 255'))
    return classes, lines


def _count_values(folder: DataFolder, pairs: dict[Path, Path]) -> tuple[Counter[int], int]:
    """Return the number of files with each value, and the number of read files.

    Raises:
        DataError: if a file cannot be read, has colours, or differs in size from the picture.
    """
    drawn = sorted(random.Random(0).sample(list(pairs), min(len(pairs), MAX_LABELS)))
    counts: Counter[int] = Counter()
    for picture in drawn:
        try:
            size = picture_size(folder.root / picture)
        except OSError:  # named later, or left out by --skip-unreadable
            continue
        counts.update(np.unique(read_label(folder.ann_root / pairs[picture], ANY_VALUE, size)).tolist())
    return counts, len(drawn)


def _write_label(folder: DataFolder, picture: Path, label: Path, classes: Classes) -> Path:
    """Write the classes of a label file, and return the path."""
    path, size, places = folder.ann_root / label, picture_size(folder.root / picture), classes.places or {}
    values = read_colours(path) if classes.in_colours else read_label(path, ANY_VALUE, size)
    if values is None or values.shape != size:
        raise DataError(f'the label {path} takes the colours of labelmap.txt in {size[1]}x{size[0]} pixels')
    labels = np.zeros(size, np.uint8)
    for value in np.unique(values).tolist():
        if value not in places:
            shown = f'colour {tuple(value.to_bytes(3, "big"))}' if classes.in_colours else f'value {value}'
            raise DataError(f'the label {path} has the {shown}, which is that of no class')
        labels[values == value] = places[value]
    name = f'labels/{label.with_suffix(".png").as_posix()}'
    return folder.write(name, cv2.imencode('.png', labels)[1].tobytes())
