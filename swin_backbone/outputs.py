"""Write the output files of a command, without replacing input files or files of the user.

A command replaces a file only if a command of this package wrote the present contents. The file `RECORD` beside
the outputs has the SHA-256 of each output, in the format of `sha256sum`. A line is added before the output is renamed.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Optional, Union

from .whole_files import write_whole, write_whole_by

RECORD = '.swin_backbone.sha256'
DATA_RECORD = '.swin_backbone.data.sha256'  # the record of generated training data, which `--data` reads
RESULTS_MARK = '.swin_backbone.results'  # the mark of a folder of results, which `--data` does not read
KEPT = 2  # lines per file; the last line may be of an interrupted write


class Outputs:
    """Output files of a command below a folder. Each file is written once.

    Args:
        folder: folder of the record, made with the first file.
        inputs: paths of input files, which are never written, also under other names.
        overwrite: replace files of the user too, but no folder, device or pipe.
        record: name of the record.

    Raises:
        FileExistsError: if the record is no regular file.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        inputs: Iterable[Union[str, Path]] = (),
        overwrite: bool = False,
        record: str = RECORD,
    ):
        self.folder = Path(folder)
        self.overwrite = overwrite
        self.record = self.folder / record
        self._inputs: set[tuple[int, int]] = set()
        self.protect(*inputs)
        self._written: set[str] = set()
        self._digests = _read_record(self.record)

    def protect(self, *inputs: Union[str, Path]) -> None:
        """Add input files."""
        self._inputs.update(filter(None, map(_identity, inputs)))

    def check(self, *paths: Union[str, Path]) -> None:
        """Check before the work that files may be written.

        Raises:
            FileExistsError: with the first file that may not be written.
        """
        for path in map(Path, paths):
            if not os.path.lexists(path):
                continue
            mode = path.lstat().st_mode
            if _identity(path) in self._inputs:
                raise FileExistsError(f'{path} is read here, and would be overwritten: write to another place')
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise FileExistsError(f'{path} is there already, and is no regular file: write to another place')
            if not self.overwrite and not self.is_own(path):
                raise FileExistsError(
                    f'{path} is there already, and no tool wrote it, or it was changed since: write to another place, '
                    'or allow it by --overwrite (in Python overwrite=True)'
                )

    def is_own(self, path: Union[str, Path]) -> bool:
        """Return whether a command wrote the present contents of a file."""
        digests, path = self._digests.get(self._name(path), []), Path(path)
        return bool(digests) and path.is_file() and not path.is_symlink() and file_digest(path) in digests

    def own_files(self) -> list[Path]:
        """Return the recorded files with unchanged contents."""
        return [path for path in (self.folder / name for name in self._digests) if self.is_own(path)]

    def write(self, path: Union[str, Path], data: bytes) -> None:
        """Write `data` to `path`; see `write_by`."""
        self.write_by(path, lambda partial: partial.write_bytes(data))

    def write_by(self, path: Union[str, Path], write: Callable[[Path], object]) -> None:
        """Let `write` write a file in one step; see `whole_files.write_whole_by`.

        Raises:
            FileExistsError: if the file may not be written; see `check`.
            OSError: if the file cannot be written.
        """
        if self._name(path) in self._written:
            raise FileExistsError(f'{path} would be written twice, for two inputs of one name')
        self.check(path)

        def write_and_record(partial: Path) -> None:
            write(partial)
            self._record(path, file_digest(partial))

        write_whole_by(path, write_and_record)

    def adopt(self, *paths: Path) -> None:
        """Record files that a toolbox wrote for the command."""
        for path in paths:
            self._record(path, file_digest(path))

    def _record(self, path: Union[str, Path], digest: str) -> None:
        if not self._written:  # without broken and old lines
            self._digests = _read_record(self.record)
            lines = [_line(name, digest) for name, digests in self._digests.items() for digest in digests[-KEPT:]]
            write_whole(self.record, b''.join(lines))
        name = self._name(path)
        self._written.add(name)
        if digest not in self._digests.setdefault(name, [])[-1:]:
            self._digests[name].append(digest)
            with open(self.record, 'ab') as file:
                file.write(_line(name, digest))

    def _name(self, path: Union[str, Path]) -> str:
        return os.path.relpath(os.path.abspath(path), os.path.abspath(self.folder))


def claim(path: Union[str, Path], inputs: Iterable[Union[str, Path]] = (), overwrite: bool = False) -> Outputs:
    """Return `Outputs` for one file, after its check.

    Raises:
        FileExistsError: see `Outputs`.
    """
    outputs = Outputs(Path(path).parent, inputs, overwrite)
    outputs.check(path)
    return outputs


def mark_folder(folder: Union[str, Path]) -> None:
    """Mark a folder of results. `--data` skips marked folders."""
    Path(folder, RESULTS_MARK).touch()


def _identity(path: Union[str, Path]) -> Optional[tuple[int, int]]:
    """Return device and inode of a file, which are equal for all names of the file, or None without a file."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    return state.st_dev, state.st_ino


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_record(path: Path) -> dict[str, list[str]]:
    """Return the digests of each file, the latest last. Damaged lines are left out."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise FileExistsError(f'{path}, the record of written files, is no regular file: move it away')
    digests: dict[str, list[str]] = {}
    for line in path.read_bytes().split(b'\n') if path.exists() else ():
        digest, _, name = line.lstrip(b'\\').partition(b'  ')
        if line.startswith(b'\\'):
            name = re.sub(rb'\\(.)', lambda escape: b'\n' if escape[1] == b'n' else escape[1], name)
        if name:
            digests.setdefault(os.fsdecode(name), []).append(digest.decode('ascii', 'replace'))
    return digests


def _line(name: str, digest: str) -> bytes:
    """Format a line of `sha256sum`."""
    escaped = os.fsencode(name).replace(b'\\', b'\\\\').replace(b'\n', b'\\n')
    return (b'\\' if escaped != os.fsencode(name) else b'') + digest.encode() + b'  ' + escaped + b'\n'
