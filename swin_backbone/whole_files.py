"""Write files in one step: after a crash a file is the old one or the new one."""

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Union

PARTIAL = '.partial-'
LEFTOVER = re.compile(rf'{re.escape(PARTIAL)}[0-9a-f]{{16}}-')  # see `make_temporary_name`
LEFTOVER_AGE_S = 24 * 3600
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

    Missing folders are made. Of several writers at once, the last one's file stays. After any error the old file stays,
    and the temporary file is removed. Files that killed processes left in the folder are removed after a day.

    Raises:
        OSError: if the file cannot be written, as on a full disk.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent.absolute())
    partial = make_temporary_name(path)
    try:
        write(partial)
        _flush(partial, os.O_RDWR)
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:  # of a file, not of a server
            error.filename = str(path)  # absent in errors of a write
        raise
    with suppress(PermissionError):  # Windows opens no folder
        _flush(path.parent, os.O_RDONLY)  # else a power cut undoes the renaming


def make_temporary_name(path: Path) -> Path:
    """Return a hidden name beside `path` for one writer, with the suffix of `path`.

    A long name becomes a hash, with at most `LONGEST_SUFFIX` characters of the suffix.
    """
    encoded, start = os.fsencode(path.name), f'{PARTIAL}{secrets.token_hex(8)}-'
    fits = len(start) + len(encoded) <= LONGEST_NAME
    return path.with_name(
        start + (path.name if fits else hashlib.sha256(encoded).hexdigest() + path.suffix[:LONGEST_SUFFIX])
    )


@cache  # a folder is listed once in a process
def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that have not changed for a day: of processes that were killed."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if LEFTOVER.match(entry.name):
                with suppress(OSError):  # another process removes it
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > LEFTOVER_AGE_S:
                        is_folder = entry.is_dir(follow_symlinks=False)
                        (shutil.rmtree if is_folder else os.unlink)(entry.path)


def _flush(path: Path, mode: int) -> None:
    """Wait until a file, or a folder's list of names, is on the disk. Windows takes only files open for writing."""
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
