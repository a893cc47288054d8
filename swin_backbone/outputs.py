"""Protect files from the outputs of a command: an output that exists is refused without --overwrite."""

import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Optional, Union

from filelock import FileLock, Timeout

REPORT_JSON = 'report.json'  # the numbers of a report, in its folder
RESULTS_MARK = '.swin_backbone.results'  # the mark of a folder of results


class FolderInUse(ValueError):
    """Another process writes to the folder of results."""


def check_outputs(
    *paths: Union[str, Path, None], inputs: Iterable[Union[str, Path]] = (), overwrite: bool = False
) -> None:
    """Check before the work that files may be written.

    Args:
        paths: of the outputs. None is left out.
        inputs: paths of files that are read, which are never written, also under other names.
        overwrite: replace files, but no folder, device or pipe.

    Raises:
        FileExistsError: with the first file that may not be written.
    """
    input_ids = set(filter(None, map(_find_identity, inputs)))
    for path in (Path(path) for path in paths if path is not None):
        if not os.path.lexists(path):
            continue
        mode = path.lstat().st_mode
        if _find_identity(path) in input_ids:
            raise FileExistsError(f'{path} is read here, and would be overwritten: write to another place')
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FileExistsError(f'{path} is there already, and is no regular file: write to another place')
        if not overwrite:
            raise FileExistsError(
                f'{path} is there already: write to another place, or allow it by --overwrite (in Python '
                'overwrite=True)'
            )


def claim_folder(folder: Union[str, Path], overwrite: bool = False) -> None:
    """Make a folder of results, and mark it.

    Args:
        overwrite: take a marked folder with files.

    Raises:
        FileExistsError: if the folder has files of the user, or results without `overwrite`. Hidden files are allowed.
    """
    names = [name for name in os.listdir(folder) if name[0] != '.'] if os.path.lexists(folder) else []
    is_marked = Path(folder, RESULTS_MARK).exists()
    if names and not (is_marked and overwrite):
        example = Path(folder, min(names))
        if is_marked:
            raise FileExistsError(f'{example} is there already: write to another place, or allow it by --overwrite')
        raise FileExistsError(f'{folder} has files that are no results, as {example}: write to a new folder')
    mark_folder(folder)


def make_folder(folder: Union[str, Path]) -> None:
    """Make a folder for files of a command. An empty folder is marked as a folder of results."""
    if not os.path.lexists(folder) or not os.listdir(folder):
        mark_folder(folder)


def mark_folder(folder: Union[str, Path]) -> None:
    """Make and mark a folder of results. `--data` and tools/infer.py skip marked folders in other folders."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, RESULTS_MARK).touch()


@contextmanager
def lock_folder(folder: Union[str, Path], action: str, name: str = 'writer') -> Iterator[None]:
    """Keep other processes out of a folder that this process writes, while the context lasts.

    The folder is made, and two hidden files stay in it. A thread may take the lock again. The operating system releases
    the lock at the end of the process.

    Args:
        action: what the process does in the folder, for the error: 'trains in'.
        name: of the lock. Locks of different names are independent.

    Raises:
        FolderInUse: if another process or thread has the lock, naming the process.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    holder = Path(folder, f'.{name}.txt')  # of its own: Windows reads no locked file
    lock = FileLock(Path(folder, f'.{name}.lock'), is_singleton=True)  # a thread may take it twice
    try:
        lock.acquire(timeout=0)
    except Timeout:
        words = holder.read_text() if holder.is_file() else ''
        raise FolderInUse(
            f'{words or "another process"} {action} {folder}: wait, end the process, or take another folder'
        ) from None
    try:
        since = datetime.now().astimezone().isoformat(timespec='seconds')
        holder.write_text(f'process {os.getpid()} on {socket.gethostname()}, since {since},')  # for an error alone
        yield
    finally:
        lock.release()


def _find_identity(path: Union[str, Path]) -> Optional[tuple[int, int]]:
    """Return device and inode of a file, which are equal for all names of the file, or None without a file."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    return state.st_dev, state.st_ino
