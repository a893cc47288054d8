"""The folder of a user's pictures and annotations: files, and names of classes."""

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ....checks import DataError, list_first
from ....outputs import RESULTS_MARK
from ..text_files import read_text

CLASS_FILES = ('classes.txt', 'labels.txt', 'class_names.txt', 'obj.names', '_darknet.labels', '_classes.csv')
NUMBERED = re.compile(r'(\d+)[\s:,]+(\S.*)')
HEAD_BYTES = 2**16  # bytes of a file that tell its format
UNREADABLE = 'pictures that cannot be read, with their objects'
LABELME_MARKS = ['__ignore__', '_background_']  # the first names of labelme's labels.txt; the first has the value -1
CSV_HEAD = 'pixel value'  # begins the _classes.csv of Roboflow
# A line of CVAT's labelmap.txt: name:R,G,B:parts:actions. Labels of boxes may have no colour
LABELMAP = re.compile(r'([^:]+):(?:\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*)?:.*')


class DataFolder(NamedTuple):
    """Files of a user, and how they are read.

    Args:
        root: folder of the pictures.
        files: below `root`, relative to it.
        pictures: among the files.
        ann_root: folder of the annotations.
        ann_files: below `ann_root`, relative to it.
        result_folders: unread folders with results of earlier commands.
        only_file: the only annotation file or data.yaml to read.
        given_classes: classes from the command line.
        with_masks: the config uses masks of objects.
        skip_unreadable: leave out pictures whose size cannot be read.
    """

    root: Path
    files: list[Path]
    pictures: list[Path]
    ann_root: Path
    ann_files: list[Path]
    result_folders: list[str]
    only_file: Optional[Path]
    given_classes: Optional[Sequence[str]]
    with_masks: bool
    skip_unreadable: bool

    def find_by_suffix(self, *suffixes: str) -> list[Path]:
        """Return the whole paths of the annotation files with a suffix."""
        return [self.ann_root / path for path in self.ann_files if path.suffix.lower() in suffixes]

    def find_matching(self, suffix: str, pattern: str) -> list[Path]:
        """Return the annotation files, or only `only_file`, with a suffix and a pattern in the first 64 KiB."""
        paths = self.find_by_suffix(suffix) if self.only_file is None else [self.only_file]
        matching = []
        for path in paths:
            if path.suffix.lower() == suffix and path.is_file():  # no device or FIFO
                with open(path, 'rb') as file:
                    if re.search(pattern.encode(), file.read(HEAD_BYTES)):
                        matching.append(path)
        return matching

    def read_class_names(
        self, folders: Iterable[Path] = (), may_have_gaps: bool = False
    ) -> tuple[Optional[dict[int, str]], str]:
        """Return the names of the classes by their values, and the source; (None, '') without names.

        Args:
            folders: folders to search besides the two roots.
            may_have_gaps: accept gaps between values.
        """
        if self.given_classes:
            return dict(enumerate(map(str, self.given_classes))), '--classes'
        path = find_class_file((self.root, self.ann_root, *folders))
        return (None, '') if path is None else (read_class_file(path, may_have_gaps), str(path))

    def refuse_other_names(self, names: Sequence[str], where: Union[str, Path]) -> None:
        """Raise DataError if the command line has other names of classes than a file that always has names."""
        if self.given_classes and [*map(str, self.given_classes)] != [*names]:
            raise DataError(f'{where} names the classes {list_first(names)}: leave out --classes, which has others')

    def read_labelmap(self) -> dict[str, Optional[int]]:
        """Return the colours of the classes in the first labelmap.txt: see `read_labelmap`; {} without a file."""
        path = next((path for path in self.find_by_suffix('.txt') if path.name.lower() == 'labelmap.txt'), None)
        return {} if path is None else read_labelmap(path)


def parse_numbers(text: str) -> Optional[list[float]]:
    """Return the finite numbers of a line, or None if it has other words."""
    try:
        numbers = [float(word) for word in text.split()]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def is_yolo(texts: Sequence[str]) -> bool:
    """Return whether the first line of a text file has YOLO's form: a class, and the numbers of a box or outline."""
    return bool(texts) and len(parse_numbers(texts[0]) or ()) >= 5


def list_files(root: Path) -> tuple[list[Path], list[str]]:
    """List the files below a folder, as sorted relative paths. Links are followed.

    Hidden files, folders called work_dirs and folders with a mark of results are left out.

    Returns:
        The files, and the omitted folders of results.
    """
    files: list[Path] = []
    result_folders: list[str] = []
    visited: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        real_path = os.path.realpath(folder)
        if real_path in visited:  # a link to a folder above
            folders.clear()
            continue
        visited.add(real_path)
        if RESULTS_MARK in names and Path(folder) != root:
            result_folders.append(str(Path(folder).relative_to(root)))
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith('.') and name != 'work_dirs')
        files += [Path(folder, name).relative_to(root) for name in names if not name.startswith('.')]
    return sorted(files), result_folders


def read_labelmap(path: Path) -> dict[str, Optional[int]]:
    """Return the colours (0xRRGGBB) of the classes in CVAT's labelmap.txt, in its order; None for a class without one.

    A file without any such line, as TensorFlow's of this name, has no colours.

    Raises:
        DataError: if the file cannot be read, or has a further line of another form, or a name twice.
    """
    lines = [line for line in map(str.strip, read_text(path).splitlines()) if line and not line.startswith('#')]
    matches = [LABELMAP.fullmatch(line) for line in lines]
    names: list[str] = []
    colours: list[Optional[int]] = []
    for line, match in zip(lines, matches) if any(matches) else ():
        red_green_blue = [int(number) for number in match.groups()[1:] if number] if match else []
        if match is None or max(red_green_blue, default=0) > 255:
            raise DataError(f"{path} takes lines as 'road:128,64,128::', with numbers up to 255, got {line!r:.80}")
        names.append(match[1].strip())
        colours.append(int.from_bytes(red_green_blue, 'big') if red_green_blue else None)
    if names:
        require_distinct(names, path)
    return dict(zip(names, colours))


def find_class_file(folders: Iterable[Path]) -> Optional[Path]:
    """Return the first file with names of classes in folders, or None."""
    paths = (folder / name for folder in folders for name in CLASS_FILES)
    return next((path for path in paths if path.is_file()), None)


def drop_ignored_mark(names: dict[int, str]) -> dict[int, str]:
    """Return the names of classes by the values of label PNGs: without labelme's `__ignore__`, which counts as -1."""
    return dict(enumerate(list(names.values())[1:])) if list(names.values())[:2] == LABELME_MARKS else names


def read_class_file(path: Path, may_have_gaps: bool = False) -> dict[int, str]:
    """Return the names of the classes by their values: a name in each line, or a value and a name.

    Args:
        may_have_gaps: accept gaps between values. Otherwise such a line is a name.

    Raises:
        DataError: if the file cannot be read, or has a name or value twice.
    """
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if lines and lines[0].lower().startswith(CSV_HEAD):
        lines = lines[1:]
    numbered = [match for line in lines if (match := NUMBERED.fullmatch(line))]
    values = [int(match[1]) for match in numbered]
    is_dense = sorted(values) == list(range(len(lines)))
    if lines and len(set(values)) == len(lines) and (may_have_gaps or is_dense):
        names = [match[2].strip() for match in numbered]
    else:
        names = lines
        values = list(range(len(lines)))
    require_distinct(names, path)
    return dict(sorted(zip(values, names)))


def require_distinct(names: Sequence[str], where: Union[str, Path]) -> None:
    """Raise DataError if there are no names of classes, or two are equal."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names or repeated:
        got = f'{repeated[0]} twice' if repeated else 0
        raise DataError(f'{where} takes the names of the classes, each once, got {got}')


def count_suffixes(files: Sequence[Path]) -> str:
    """Return the number of files with each suffix, in words."""
    counts = Counter(path.suffix for path in files).most_common(5)
    return ', '.join(f'{count} {suffix or "without suffix"}' for suffix, count in counts) or 'nothing'


def list_folders(files: Sequence[Path]) -> str:
    """Return the folders of files, in words."""
    folders = sorted({str(path.parent) for path in files})
    return ', '.join(folders[:6]) + (f' and {len(folders) - 6} more folders' if len(folders) > 6 else '')


def format_line(title: str, *texts: str) -> str:
    """Return a line of the summary."""
    return f'  {title:<12}' + ', '.join(filter(None, texts))


def format_left_out(kind: str, paths: Collection[Path]) -> list[str]:
    """Return the line of the summary on paths of a kind that are left out; no line without any."""
    return [format_line('left out', f'{len(paths)} {kind}, as {min(paths)}')] if paths else []
