"""Write files in one step: after a crash a file is the old one or the new one."""

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Union

PARTIAL = '.partial-'
LONGEST_NAME = 255  # bytes of a file name
LONGEST_SUFFIX = 16  # characters, with the point
# Numbers of an OSError for a full or read-only disk, or a folder in the place of the file
CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EISDIR, errno.ENOTEMPTY),
}


def write_whole(path: Union[str, Path], data: bytes) -> None:
    """Write `data` to `path`; see `write_whole_by`."""
    write_whole_by(path, lambda partial: partial.write_bytes(data))


def write_whole_by(path: Union[str, Path], write: Callable[[Path], object]) -> None:
    """Let `write` write to a temporary file beside `path`, flush it to the disk, then rename it to `path`.

    Missing folders are made. The temporary file has the suffix of `path`. After any error the old file stays, and the
    temporary file is removed.

    Raises:
        OSError: if the file cannot be written, as on a full disk.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(PARTIAL + _shortened(path.name))
    try:
        partial.unlink(missing_ok=True)  # it may be a link
        write(partial)
        _flush(partial, os.O_RDWR)
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # absent in errors of a write
        raise
    with suppress(PermissionError):  # Windows opens no folder
        _flush(path.parent, os.O_RDONLY)  # else a power cut undoes the renaming


def _shortened(name: str) -> str:
    """Return a name with room for `PARTIAL`: a long name becomes a hash with the same suffix.

    The suffix has at most `LONGEST_SUFFIX` characters.
    """
    encoded = os.fsencode(name)
    fits = len(PARTIAL) + len(encoded) <= LONGEST_NAME
    return name if fits else hashlib.sha256(encoded).hexdigest() + Path(name).suffix[:LONGEST_SUFFIX]


def _flush(path: Path, mode: int) -> None:
    """Wait until a file, or a folder's list of names, is on the disk. Windows takes only files open for writing."""
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
