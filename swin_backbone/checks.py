"""Checks of arguments and files. A function `check_...` returns the value, or raises an error "NAME takes X, got Y".

A value of a wrong type is a TypeError, a value out of range a ValueError. The module imports no other package.
"""

import math
import os
import stat
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

Value = TypeVar('Value')

LARGEST_FILE = 2**34  # bytes of a picture or annotation file
MAX_VALUE = 200  # characters of a value in a message


class DataError(ValueError):
    """Data that cannot be used: one sentence with the name of the file."""


def refusal(name: str, allowed: str, value: object) -> str:
    """Return the error message for a refused value."""
    got = repr(value)
    return f'{name} takes {allowed}, got {got if len(got) <= MAX_VALUE else got[:MAX_VALUE] + "..."}'


def list_first(names: Sequence[object], number: int = 3) -> str:
    """Return the first names for a message, and the number of further ones."""
    rest = len(names) - number
    return ', '.join(map(str, names[:number])) + (f' and {rest} more' if rest > 0 else '')


def check_type(name: str, value: Value, kinds: Union[type, tuple[type, ...]], allowed: str) -> Value:
    """Check the type of a value.

    Args:
        kinds: the allowed types.
        allowed: the allowed values in words.
    """
    if not isinstance(value, kinds):
        raise TypeError(refusal(name, allowed, value))
    return value


def check_int(name: str, value: object, least: Optional[int] = None) -> int:
    """Check a whole number of Python or NumPy, with an inclusive limit."""
    allowed = 'a whole number' + ('' if least is None else f' of at least {least}')
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(refusal(name, allowed, value))
    if least is not None and int(value) < least:
        raise ValueError(refusal(name, allowed, value))
    return int(value)


def check_number(
    name: str,
    value: object,
    allowed: str = 'a finite number',
    is_allowed: Callable[[float], bool] = lambda number: True,
) -> float:
    """Check a finite number of Python or NumPy.

    Args:
        allowed: the allowed numbers in words.
        is_allowed: whether a finite number is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(refusal(name, allowed, value))
    try:
        number = float(value)
    except OverflowError:  # an int beyond all floats
        number = math.inf
    if not (math.isfinite(number) and is_allowed(number)):
        raise ValueError(refusal(name, allowed, value))
    return number


def check_choice(name: str, value: Value, choices: Collection[str]) -> Value:
    """Check a name among the allowed names."""
    allowed = 'one of ' + ', '.join(map(repr, choices))
    if not isinstance(value, str):
        raise TypeError(refusal(name, allowed, value))
    if value not in choices:
        similar = get_close_matches(value, choices, 1)
        raise ValueError(refusal(name, allowed, value) + (f'; did you mean {similar[0]!r}?' if similar else ''))
    return value


def check_sequence(name: str, value: object, allowed: str, length: Optional[int] = None) -> tuple[Any, ...]:
    """Check a list, a tuple or another sequence, but no text, and return a tuple.

    Args:
        allowed: the allowed values in words.
        length: the number of entries. Default: at least one.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(refusal(name, allowed, value))
    if not value or length not in (None, len(value)):
        raise ValueError(refusal(name, allowed, value))
    return tuple(value)


def check_size(name: str, value: object) -> tuple[int, int]:
    """Check a side or a pair (height, width), and return a pair."""
    allowed = 'a whole number of at least 1, or a pair (height, width)'
    sides = (value,) if is_int(value) else check_sequence(name, value, allowed)
    if len(sides) > 2:
        raise ValueError(refusal(name, allowed, value))
    return check_int(name, sides[0], 1), check_int(name, sides[-1], 1)


def is_int(value: object) -> bool:
    """Return whether a value is a whole number of Python or NumPy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_file(path: Union[str, Path], max_bytes: int = LARGEST_FILE) -> None:
    """Check that a path is a regular file of bounded size. A read of a device or FIFO may never end.

    Args:
        max_bytes: size of the largest file that is read.

    Raises:
        OSError: if not, with the path.
    """
    try:
        state = os.stat(path)
    except ValueError as error:  # NUL in the name, or half of a surrogate pair
        raise OSError(f'{str(path)!r} is not a valid file name: {error}') from error
    if not stat.S_ISREG(state.st_mode):
        kind = 'a folder' if stat.S_ISDIR(state.st_mode) else 'a device, FIFO or socket'
        raise OSError(f'{path} is {kind}, not a file')
    if state.st_size > max_bytes:
        raise OSError(f'{path} has {state.st_size:,} bytes; at most {max_bytes:,} are read')
