"""Text files of the user. The file imports no toolbox: a report on files needs none."""

import codecs
from pathlib import Path
from typing import Union

from ...checks import DataError, require_file

UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MAX_TEXT_BYTES = 2**26  # bytes of a file with the labels of one picture, or names


def read_file(path: Union[str, Path], max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        DataError: if there is no such file, with the path.
    """
    try:
        require_file(path, max_bytes)
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(reason if str(path) in reason else f'{path} cannot be read: {reason}') from error


def decode(content: bytes) -> str:
    """Return a text in UTF-8, or in UTF-16 with a byte order mark as Windows's programs write, without the mark."""
    return content.decode('utf-16' if content.startswith(UTF_16_MARKS) else 'utf-8-sig')


def read_text(path: Union[str, Path], max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a regular file: see `decode`. Raises: see `read_file`."""
    try:
        return decode(read_file(path, max_bytes))
    except UnicodeDecodeError as error:
        raise DataError(f'{path} cannot be read, save it in UTF-8: {error}') from error
