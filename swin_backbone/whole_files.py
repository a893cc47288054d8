"""Writing files that are complete or not there at all, whatever happens meanwhile."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Union

from mmengine.fileio import LocalBackend, register_backend

PARTIAL = '.partial-'
MOST_BYTES = 255  # of a name in a folder
LONGEST_SUFFIX = 16  # characters, with the point
# What an OSError says of a disk or folder that takes no more, or of a name that a folder has
CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EISDIR, errno.ENOTEMPTY),
}


def write_whole(path: Union[str, Path], data: bytes) -> None:
    """Write `data` to `path`; see `write_whole_by`."""
    write_whole_by(path, lambda partial: partial.write_bytes(data))


def write_whole_by(path: Union[str, Path], write: Callable[[Path], object]) -> None:
    """Let `write` write to a temporary file beside `path`, flush it to the disk, then rename it to `path`.

    Folders that are missing are made. The temporary file's name ends as that of `path`.

    Raises:
        OSError: if it cannot be written, as on a full disk. What was there stays, and nothing is left beside it, as for
            any other error of `write`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(PARTIAL + _shortened(path.name))
    try:
        partial.unlink(missing_ok=True)  # a link of that name leads elsewhere
        write(partial)
        _flush(partial)
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a write does not say of what
        raise
    _flush(path.parent)  # its list of names, without which a power cut undoes the renaming


def _shortened(name: str) -> str:
    """A name that is too long for `PARTIAL` before it, as a short one of its own with the same suffix.

    What is longer than a suffix of a format is none, as after the point in a long name.
    """
    encoded = os.fsencode(name)
    fits = len(PARTIAL) + len(encoded) <= MOST_BYTES
    return name if fits else hashlib.sha256(encoded).hexdigest() + Path(name).suffix[:LONGEST_SUFFIX]


def write_between(document: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two markers of a document, in the place of what is there.

    Raises:
        ValueError: if it does not have both, in this order.
    """
    before, found, rest = document.read_text(encoding='utf-8').partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f'{document} has no lines {begin!r} and {end!r}')
    write_whole(document, f'{before}{begin}\n\n{text}\n\n{end}{after}'.encode())


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class WholeFileBackend(LocalBackend):
    """mmengine's access to local files, whose `put` leaves no half-written file."""

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        write_whole(filepath, obj)


register_backend('whole', WholeFileBackend, force=True)
