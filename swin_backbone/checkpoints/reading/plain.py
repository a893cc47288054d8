"""What is left of a pickle once it is read: plain data."""

import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Union

import numpy as np
from torch import Tensor

from ..errors import CheckpointError
from .budget import Budget

LEAVES = {type(None), bool, int, float, complex, str, bytes}
MAX_DEPTH = 64  # of lists in dicts in tuples; a training script's are some ten deep
VALUE_BYTES = 128


class Forbidden(CheckpointError):
    """A pickle asks for something that is not allowed.

    Args:
        wanted: names, or what they are.
    """

    def __init__(self, wanted: list[str]):
        super().__init__(f'it wants {", ".join(sorted(set(wanted)))}')
        self.wanted = wanted


class Name:
    """What a pickle refers to by `module.name`. It is never imported."""

    def __init__(self, text: str):
        self.text = text.replace('__builtin__.', 'builtins.')  # as Python 2 has it


class Built:
    """The stand-in for an object that a pickle makes first, and gives its state later."""

    def build(self, state: Any) -> None:
        raise NotImplementedError

    def finish(self) -> Any:
        """The value itself."""
        raise NotImplementedError


def checked_key(key: Any) -> Any:
    """A key of a dict or set: a number, a string, or a tuple of them, for a hash must not go deep."""
    parts: Union[tuple[Any, ...], list[Any]] = key if type(key) is tuple else [key]
    if not all(type(part) in LEAVES for part in parts):
        raise CheckpointError(f'a key in it is a {type(key).__name__} of more than numbers and strings')
    return key


def as_plain(value: Any, budget: Budget, place: Callable[[Tensor], Tensor]) -> Any:
    """Tensors, plain arrays, numbers, strings, and lists, tuples, sets and dicts of them; mmengine's HistoryBuffer.

    What is shared stays so. It is charged for as often as it can be met, because whoever walks through the data meets
    it so often. A torch.dtype becomes its name.

    Args:
        place: puts a tensor on the device wanted.

    Raises:
        CheckpointError: if it goes too deep, or in circles.
        Forbidden: if something else is left.
    """
    finisher = _Finisher(place)
    plain, count, _ = finisher.finish(value, 0)
    if finisher.forbidden:
        raise Forbidden(finisher.forbidden)
    budget.charge(count * VALUE_BYTES)
    return plain


class _Finisher:
    """Each of its methods gives the plain value, how many values it is, and how deep they go."""

    def __init__(self, place: Callable[[Tensor], Tensor]):
        self.place = place
        self.done: dict[int, tuple[Any, int, int]] = {}  # by the id of what it was
        self.forbidden: list[str] = []

    def finish(self, value: Any, depth: int) -> tuple[Any, int, int]:
        if type(value) in LEAVES or isinstance(value, np.generic):
            return value, 1, 0
        key = id(value)
        if key not in self.done:
            if depth == MAX_DEPTH:
                raise _too_deep()
            self.done[key] = self.finish_new(value, depth)
        if self.done[key][2] > MAX_DEPTH:  # where one meets what was first met elsewhere
            raise _too_deep()
        return self.done[key]

    def finish_new(self, value: Any, depth: int) -> tuple[Any, int, int]:
        kind = type(value)
        if kind in (list, tuple):
            parts = [self.finish(item, depth + 1) for item in value]
            plain: Any = kind(part for part, _, _ in parts)
        elif kind in (dict, OrderedDict, Counter):
            parts = [self.finish(item, depth + 1) for item in value.values()]
            plain = kind()
            for name, (part, _, _) in zip(value, parts):
                plain[name] = part
            if hasattr(value, '_metadata'):
                parts.append(self.finish(value._metadata, depth + 1))
                plain._metadata = parts[-1][0]
        else:
            return self.finish_single(value)
        counts, heights = [count for _, count, _ in parts], [height for _, _, height in parts]
        return plain, 1 + sum(counts), 1 + max(heights, default=0)

    def finish_single(self, value: Any) -> tuple[Any, int, int]:
        if isinstance(value, Tensor):
            return self.place(value), 1, 0
        if isinstance(value, Built):
            return value.finish(), 1, 0
        if isinstance(value, (set, frozenset)):  # their items are keys: plain
            return value, 1 + len(value), 1
        if isinstance(value, Name):
            if not re.fullmatch(r'torch\.[a-z]\w*', value.text):
                self.forbidden.append(value.text)
            return value.text, 1, 0
        raise TypeError(f'a {type(value).__name__} by itself')


def _too_deep() -> CheckpointError:
    return CheckpointError(f'its contents are nested more than {MAX_DEPTH} deep')
