"""YOLO's text files: pictures, classes and splits by data.yaml, and boxes or outlines.

Sources: docs.ultralytics.com/datasets/detect and /segment; the exports of CVAT, Label Studio and Roboflow.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import Any, Optional

import numpy as np
import yaml
from numpy.typing import NDArray

from .....checks import DataError
from ...text_files import read_text
from ..folder import DataFolder, format_left_out, format_line, is_yolo, parse_numbers, require_distinct
from ..pairs import find_pairable_tags, find_tags, leave_out_labels
from ..records import GivenSplit, PicturesBySplit, Records
from ..splits import SPLITS, find_split, index_tails, match_lines, read_split_lists
from .convert import convert_objects
from .shapes import Box, find_corners, make_box

ROUNDING = 0.01  # share of a side: a box may reach so far out of its picture, by rounding, and is cut there
MAX_YAML_BYTES = 2**20  # bytes
MAX_TEXTS = 1000  # text files whose lines decide how all are read
NO_VALUE = ('', '~', 'null', 'Null', 'NULL')


class TextLoader(yaml.BaseLoader):
    """PyYAML's loader in Python whose values are texts: names as off, 007 and 1e3 stay. Without aliases.

    A short file with nested aliases describes a structure of exponential size. The loader in C crashes on deeply nested
    files.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError('an alias (*name) is not read')
        return super().compose_node(parent, index)


def read(folder: DataFolder) -> Optional[Records]:
    """Read a text file for each picture, in labels/ if the picture is in images/, or beside the picture."""
    if _is_of_other_format(folder.only_file):
        return None
    yaml_path, settings = _read_settings(folder)
    pictures = {*leave_out_labels(folder.pictures)}
    files = {picture: file for picture, file in _pair_files(folder).items() if file is not None or picture in pictures}
    texts = [file for file in files.values() if file is not None]
    samples = [read_text(file).strip().splitlines() for file in texts[:MAX_TEXTS]]
    if not any(is_yolo(lines) or not lines for lines in samples):  # an empty file: a picture without objects
        return None
    folders = {file.parent for file in texts}
    text_files = {file for file in folder.find_by_suffix('.txt') if file.parent in folders}
    unused = [file for file in sorted(text_files - set(texts)) if is_yolo(read_text(file).splitlines())]
    names = settings.get('names')
    source = ''
    if names is None:
        numbered, source = folder.read_class_names(sorted(folders))
        names = list(numbered.values()) if numbered else None
        source = f'from {source}' if source else 'called by their numbers: no data.yaml and no classes.txt has names'
    else:
        folder.refuse_other_names(names, yaml_path)
    lists, lines = _read_lists(folder, yaml_path, settings)
    given_split = GivenSplit(lists, str(yaml_path)) if lists else read_split_lists(folder, folder.pictures)
    pose_length = math.prod(settings.get('kpt_shape') or [0])
    has_tracks = not pose_length and _have_tracks(chain(*samples))
    records = convert_objects(
        folder,
        'YOLO',
        files,
        given_split,
        read=lambda file, size, _: (size, read_yolo(file, size, names, pose_length, has_tracks)),
        name_classes=lambda used: names or sorted(used, key=lambda name: (len(name), name)),
    )
    without = [picture for picture, file in files.items() if file is None]
    if without:
        records.lines.append(
            format_line('no labels', f'{len(without)} pictures have no text file, as {without[0]}: background')
        )
    if has_tracks or any(
        0 < len(text.split()) - 5 - pose_length <= _limit_behind(pose_length) for text in chain(*samples)
    ):
        records.lines.append(format_line('not read', "the numbers behind an object: a score or a track's id"))
    records.lines.extend(format_left_out('text files without a picture', unused))
    records.lines.extend(format_line('', text) for text in (source, *lines) if text)
    return records


def _is_of_other_format(only_file: Optional[Path]) -> bool:
    return only_file is not None and only_file.suffix.lower() in ('.json', '.xml')


def _read_settings(folder: DataFolder) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of the first data.yaml with names, which become a list."""
    only_file = folder.only_file
    paths = [only_file] if only_file is not None else folder.find_by_suffix('.yaml', '.yml')
    for path in sorted(paths, key=lambda path: (path.stem != 'data', path)):
        try:
            values = yaml.load(read_text(path, MAX_YAML_BYTES), Loader=TextLoader)
        except (DataError, yaml.YAMLError, RecursionError, ValueError) as error:
            if only_file is None and path.stem != 'data':  # a YAML file about another subject
                continue
            reason = ' '.join(str(error).split())
            raise DataError(reason if str(path) in reason else f'{path} cannot be read: {reason}') from error
        names = values.get('names') if isinstance(values, dict) else None
        if isinstance(names, dict):
            indices = [str(index) for index in range(len(names))]
            if {*names} != {*indices}:
                raise DataError(f'{path}: names takes names by numbers that count from 0, got {list(names)!r:.200}')
            names = [names[index] for index in indices]
        if isinstance(names, list):
            names = [str(name) for name in names]
            require_distinct(names, f'{path}: names')
            shape = values.get('kpt_shape', [])
            if not (isinstance(shape, list) and all(str(size).isdecimal() for size in shape)):
                raise DataError(f'{path}: kpt_shape takes whole numbers, as [17, 3], got {shape!r:.80}')
            return path, {**values, 'names': names, 'kpt_shape': [int(size) for size in shape]}
        if only_file is not None:
            raise DataError(f"{path} is no data.yaml of YOLO's: it has no list of names")
    return folder.root / 'data.yaml', {}


def _pair_files(folder: DataFolder) -> dict[Path, Optional[Path]]:
    """Return the text file, or None, for each picture."""

    def make_key(path: Path) -> tuple[str, ...]:  # Images/ and labels/ are written in any case
        return (*(part.lower() for part in path.parent.parts), path.stem)

    texts = {make_key(path): folder.ann_root / path for path in folder.ann_files if path.suffix.lower() == '.txt'}
    files: dict[Path, Optional[Path]] = {}
    owners: dict[Path, Path] = {}
    for picture in folder.pictures:
        parts = picture.parts
        tried = [picture]
        images = [index for index in range(len(parts) - 1) if parts[index].lower() == 'images']
        if images:
            before, behind = parts[: images[-1]], parts[images[-1] + 1 :]
            tried.insert(0, Path(*before, 'labels', *behind))
            tried.append(Path(*before, *behind))  # in an --annotations folder
        text = next((texts[make_key(path)] for path in tried if make_key(path) in texts), None)
        if text is not None and owners.setdefault(text, picture) != picture:
            raise DataError(
                f'{owners[text]} and {picture} share the labels {text}: give each picture a name and labels of its own'
            )
        files[picture] = text
    if not any(files.values()):  # in a folder of another name, as makesense's
        stems: dict[str, list[Path]] = {picture.stem: [] for picture in files}
        for text in texts.values():
            if text.stem in stems:
                stems[text.stem].append(text.relative_to(folder.ann_root))
        pairable = find_pairable_tags(files, chain(*stems.values()))
        for picture in files:
            several = [text for text in stems[picture.stem] if find_tags(text) in pairable[find_tags(picture)]]
            if len(several) == 1:
                stems[picture.stem].remove(several[0])
                files[picture] = folder.ann_root / several[0]
    return files


def find_lists(folder: DataFolder) -> set[Path]:
    """Return the lists of pictures that a data.yaml names, also those outside of the folder."""
    if _is_of_other_format(folder.only_file):
        return set()
    try:
        entries = _find_entries(folder, *_read_settings(folder))
    except DataError:  # `read` raises it
        return set()
    return {path for tried in entries.values() for path in chain(*tried.values()) if path.is_file()}


def _find_entries(folder: DataFolder, yaml_path: Path, settings: dict[str, Any]) -> dict[str, dict[str, list[Path]]]:
    """Return the entries of each split of a data.yaml, with the paths that each may be."""
    base = yaml_path.parent
    stated = settings.get('path')
    path = base / str(stated or '')
    if stated and path.is_dir():
        if path.resolve() != folder.root.resolve() and folder.root.resolve() not in path.resolve().parents:
            raise DataError(
                f'{yaml_path} has `path: {stated}`, which is another folder than {folder.root}: correct `path:`, or '
                f'pass --data {stated}'
            )
        base = path
    # Exports of Roboflow have ../train/images, relative to no existing folder
    return {
        split: {
            entry: [root / name for name in (entry, entry.replace('../', '')) for root in (base, folder.root)]
            for entry in map(str, value if isinstance(value, list) else [value])
            if entry not in NO_VALUE
        }
        for split in SPLITS
        for value in [settings.get(split, '')]
    }


def _read_lists(folder: DataFolder, yaml_path: Path, settings: dict[str, Any]) -> tuple[PicturesBySplit, list[str]]:
    """Return the pictures of train, val and test of a data.yaml, and lines of the summary."""
    tails = index_tails(folder.pictures)
    parents = {parent: (folder.root / parent).resolve() for parent in {picture.parent for picture in folder.pictures}}

    def find_pictures(target: Path) -> list[Path]:
        """Return the pictures below a folder, or those named in a text file."""
        if target.is_file():
            return match_lines(read_text(target).splitlines(), tails)
        inside = target.resolve()
        chosen = {parent for parent, path in parents.items() if inside in (path, *path.parents)}
        return [picture for picture in folder.pictures if picture.parent in chosen]

    lists: PicturesBySplit = {}
    lines: list[str] = []
    for split, entries in _find_entries(folder, yaml_path, settings).items():
        pictures: list[Path] = []
        for entry, tried in entries.items():
            matched = next(filter(None, map(find_pictures, tried)), [])
            if not matched and (similar := _find_by_end(entry, split, folder)):
                matched = find_pictures(similar)
                lines.append(f'{yaml_path}: `{split}: {entry}` is no path here, and taken for {similar}')
            pictures += matched
        if pictures:
            lists[split] = pictures
        elif entries and split == 'train':
            raise DataError(
                f'none of the {len(folder.pictures)} pictures below {folder.root} is among those that `train: '
                f'{next(iter(entries))}` of {yaml_path} names'
            )
        elif entries and split == 'val':
            lines.append(f'{yaml_path}: `val: {next(iter(entries))}` names no picture below {folder.root}')
    return lists, lines


def _find_by_end(entry: str, split: str, folder: DataFolder) -> Optional[Path]:
    """Return the folder or text file whose path has the longest end of an entry: Windows's, Colab's or in other cases.

    None if several paths have it, or if it is a folder of another split.
    """
    entry_parts = [part.lower() for part in PureWindowsPath(entry).parts if part not in ('..', '\\')]
    candidates = {path for picture in folder.pictures for path in picture.parents}
    candidates |= {file for file in folder.files if file.suffix.lower() == '.txt'}
    root = folder.root.resolve()
    parts_of = {root / path: [part.lower() for part in (root / path).parts] for path in candidates}
    for first in range(len(entry_parts)):
        end = entry_parts[first:]
        fitting = [path for path, parts in parts_of.items() if parts[-len(end) :] == end]
        if fitting:
            is_of_split = find_split(fitting[0].relative_to(root)) in (None, split)
            return fitting[0] if len(fitting) == 1 and is_of_split else None
    return None


def _have_tracks(lines: Iterable[str]) -> bool:
    """Return whether lines end in a score and the number of a track, behind a box or an outline.

    The last number of an outline is a share of the height: no whole number but 0 or 1. If there are no others, seven
    numbers whose first make a box in the picture are a box.
    """
    rows = [values for text in lines if len(text.split()) % 2 and (values := parse_numbers(text)) and len(values) >= 7]
    if not rows or any(values[-1] % 1 for values in rows):
        return False
    if any(values[-1] > 1 for values in rows):
        return True
    return all(len(values) == 7 and _is_box(values[1:5]) for values in rows)


def _limit_behind(pose_length: int) -> int:
    """Return how many numbers may follow a box: a score and a track's id. Without a pose, two would be a point."""
    return 2 if pose_length else 1


def _is_box(values: Sequence[float]) -> bool:
    x, y, width, height = values
    edges = (x - width / 2, x + width / 2, y - height / 2, y + height / 2)
    return all(-ROUNDING <= edge <= 1 + ROUNDING for edge in edges)


def read_yolo(
    file: Path, size: tuple[int, int], names: Optional[Sequence[str]], pose_length: int, has_tracks: bool
) -> list[Box]:
    """Return the boxes of a text file: CLASS X Y WIDTH HEIGHT in a line, or CLASS and the points of an outline.

    Positions are shares of the picture's width and height, X and Y the centre. Numbers behind a box, a score and a
    track's id, are not read.

    Args:
        names: names of the classes. None: numbers are the names.
        pose_length: how many numbers of a pose follow each box; they are not read.
        has_tracks: a score and a track's id are behind boxes and outlines.

    Raises:
        DataError: with file and line.
    """
    height, width = size
    form = 'CLASS X Y WIDTH HEIGHT' + (
        f' and {pose_length} numbers of points' if pose_length else ', or CLASS and points'
    )
    boxes = []
    for line, text in enumerate(read_text(file).splitlines(), 1):
        words = text.split()
        if not words:
            continue
        values = parse_numbers(text)
        if has_tracks and values is not None and len(values) >= 7 and len(values) % 2:
            values = values[:-2]
        is_outline = not pose_length and values is not None and len(values) >= 7 and len(values) % 2 == 1
        if values is None or not (is_outline or 0 <= len(values) - 5 - pose_length <= _limit_behind(pose_length)):
            raise DataError(f'{file}, line {line}, takes {form}; got {text!r:.80}')
        values = values if is_outline else values[:5]
        if values[0] % 1 or not 0 <= values[0] < (len(names) if names else math.inf):
            end = f'to {len(names) - 1}' if names else 'on'
            raise DataError(f'{file}, line {line}: the class is a whole number from 0 {end}, got {words[0]!r}')
        if not all(-ROUNDING <= value <= 1 + ROUNDING for value in values[1:]):
            raise DataError(f'{file}, line {line}, takes shares of the picture, from 0 to 1; got {text!r:.80}')
        corners: NDArray[Any] = np.reshape(values[1:], (-1, 2))
        if not is_outline:
            centre, half = corners[0], corners[1] / 2
            corners = find_corners(*(centre - half), *(centre + half))
        class_name = names[int(values[0])] if names else f'class {int(values[0])}'
        boxes.append(make_box(class_name, corners * (width, height), size, not is_outline))
    return boxes
