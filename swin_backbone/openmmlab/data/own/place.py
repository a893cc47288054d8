"""Where pictures and annotations are looked for, what was found, and in which words it is said."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....outputs import Outputs
from .files import files_below
from .label_files import pictures_in

SPLIT_SAID = 'a fifth of the pictures is held out for validation, the same ones each time'


class Found(NamedTuple):
    """What was found.

    Args:
        own_data: as a config has it; see fill.py.
        lines: what to tell the user.
    """

    own_data: dict[str, Any]
    lines: list[str]


class Place(NamedTuple):
    """Where to look, what is there, and where what is made of it goes."""

    root: Path
    files: list[Path]  # below root, relative to it
    ann_root: Path
    ann_files: list[Path]  # below ann_root, relative to it
    outputs: Outputs
    results: list[str]  # of earlier commands, which are not read

    @property
    def pictures(self) -> list[Path]:
        return pictures_in(self.files)

    def of_suffix(self, *suffixes: str) -> list[Path]:
        """Files of annotations, with their whole path."""
        return [self.ann_root / path for path in self.ann_files if path.suffix.lower() in suffixes]

    def write(self, name: str, data: Any) -> Path:
        path = self.outputs.folder / name
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        if not (path.is_file() and path.read_bytes() == content):
            self.outputs.write(path, content)
        return path.absolute()


def has_pictures(root: Path) -> bool:
    return bool(pictures_in(files_below(root)[0]))


def kinds_of(files: Sequence[Path]) -> str:
    """How many files of each suffix there are."""
    suffixes = sorted({path.suffix for path in files}, key=lambda s: -sum(path.suffix == s for path in files))
    return ', '.join(f'{sum(p.suffix == s for p in files)} {s or "without suffix"}' for s in suffixes[:5]) or 'nothing'


def folders_of(files: Sequence[Path]) -> str:
    folders = sorted({str(path.parent) for path in files})
    return ', '.join(folders[:6]) + (f' and {len(folders) - 6} more folders' if len(folders) > 6 else '')


def line_of(name: str, *said: str) -> str:
    return f'  {name:<12}' + ', '.join(filter(None, said))


def names_shown(names: Sequence[str]) -> str:
    return f'{len(names)}: ' + ', '.join(names[:12]) + (', ...' if len(names) > 12 else '')
