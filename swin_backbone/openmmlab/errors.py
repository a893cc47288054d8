"""The errors of data that is wrong and of a training that cannot go on, and errors as sentences.

Toolboxes assert, or fail where a tensor meets a weight; what their users wrote is a setting of a config. The innermost
object at work that the config describes says which.
"""

import linecache
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Optional

from mmengine.config import Config
from mmengine.registry import build_from_cfg

from ..checkpoints import CheckpointError

IN_WORKER = 'Original Traceback (most recent call last)'
MOST_CHARACTERS = 1000
WITHOUT_BASE = 'NoneType takes no arguments'  # where what a class inherits from could not be imported
WHERE = f'{__name__}.DataError: '
EXAMPLES = 3  # of each kind of fault
MOST_SETTINGS = 6  # that are shown
PLAIN = (bool, int, float, str, list, tuple, type(None))


class DataError(ValueError):
    """Data that cannot be trained or tested on: one sentence that names the file."""

    @property
    def sentence(self) -> str:
        """The message without the traceback that torch writes in front of what a worker process raised."""
        return str(self).rpartition(WHERE)[2].strip()


class Faults:
    """What is wrong with many things: of each kind how many, and the first of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def update(self, other: 'Faults', where: str) -> None:
        """Add those of another, which are in a file."""
        for kind, examples in other.examples.items():
            kind_there = f'{where}: {kind}'
            self.counts[kind_there] += other.counts[kind]
            self.examples[kind_there] = [*self.examples.get(kind_there, ()), *examples][:EXAMPLES]

    def extend(self, other: 'Faults') -> None:
        """Add the faults of another."""
        for kind, examples in other.examples.items():
            self.counts[kind] += other.counts[kind]
            self.examples[kind] = [*self.examples.get(kind, ()), *examples][:EXAMPLES]

    def sentences(self) -> list[str]:
        """What is wrong, one kind each."""
        return [f'{kind}: {self.counts[kind]}, as {"; ".join(examples)}' for kind, examples in self.examples.items()]


class TrainingStopped(RuntimeError):
    """Training ended before its time; one sentence says why, and from where to go on."""


class ConfigError(ValueError):
    """A config that cannot work: one sentence that names the key, what it got, and what it takes."""


KNOWN = (CheckpointError, ConfigError, TrainingStopped)  # sentences already


def sentence_of(error: BaseException) -> str:
    """The message of an error in one line, with its kind where the message alone does not say what is wrong.

    Where an error comes from a part of a config, its key, class and settings go before it.
    """
    if isinstance(error, DataError):
        return error.sentence
    if isinstance(error, KNOWN):
        return _one_line(str(error))
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f'{error.filename} ({error.strerror})'  # as swin_backbone/command_line.py says it, without a number
    where = place_of(error)
    return (f'{where}: ' if where else '') + _message(error)


def _message(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return 'it is nested too deeply, or holds itself'
    if isinstance(error, UnicodeDecodeError):
        return f'it is no text in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x})'
    if WITHOUT_BASE in str(error) and 'mmpretrain' in Path(error_file(error)).parts:
        return (
            f"mmpretrain cannot be imported beside this transformers ({error}): pip install 'transformers<5', or "
            'uninstall it, which classification and SimMIM do not need'
        )
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if IN_WORKER in message:  # of torch's: the traceback of what a worker process raised
        message = message.strip().rpartition('\n')[2]
    message = _one_line(message) or f'`{failing_line(error)}` failed'
    return message if isinstance(error, (ValueError, TypeError, OSError)) else f'{type(error).__name__}: {message}'


def _one_line(message: str) -> str:
    message = ' '.join(message.split())
    return message if len(message) <= MOST_CHARACTERS else f'{message[:MOST_CHARACTERS]}...'


def place_of(error: BaseException) -> str:
    """The key, class and settings of the part of a config that an error comes from; '' if none of one is to be found.

    As `model.neck, of type FPN(in_channels=[5, 64], out_channels=64)`.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    cfg = next(filter(None, map(_config_in, frames)), None)
    for frame in reversed(frames) if cfg is not None else ():
        name, node = _described_in(frame)
        found = [(key, part) for key, part in parts_of(cfg) if name and kind_of(part) == name]
        if found:
            owner = frame.f_locals.get('self')
            key, part = max(found, key=lambda one: _likeness(one[1], owner) if node is None else one[1] == node)
            settings = [f'{name}={value!r}' for name, value in part.items() if name != 'type' and _is_short(value)]
            return f'{key}, of type {name}({", ".join(settings[:MOST_SETTINGS])})'
    return ''


def failing_line(error: BaseException) -> str:
    """The line of source that an error was raised in."""
    *_, (frame, number) = traceback.walk_tb(error.__traceback__)
    return linecache.getline(frame.f_code.co_filename, number).strip()


def error_file(error: BaseException) -> str:
    """The file of source that an error was raised in; '' for one that was not raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code.co_filename if frames else ''


def parts_of(node: Any, key: str = '') -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dict of a config that has a type, with its dotted key; what is outside first."""
    items: Any = ()
    if isinstance(node, (dict, Config)):
        if key and 'type' in node:
            yield key, node
        items = node.items()
    elif isinstance(node, (list, tuple)):
        items = enumerate(node)
    for name, child in items:
        yield from parts_of(child, f'{key}.{name}' if key else str(name))


def kind_of(part: dict[str, Any]) -> str:
    """The name of the class that a part's type stands for, without a toolbox's prefix."""
    kind = part['type']
    return kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', str(kind))


def _config_in(frame: FrameType) -> Optional[Config]:
    for name in ('cfg', 'runner', 'self'):
        value = frame.f_locals.get(name)
        value = vars(value).get('cfg') if name != 'cfg' and hasattr(value, '__dict__') else value
        if isinstance(value, Config):
            return value
    return None


def _described_in(frame: FrameType) -> tuple[str, Optional[dict[str, Any]]]:
    """The class of the object that a frame works for; and its config, where it is being built."""
    if frame.f_code is build_from_cfg.__code__:
        node = frame.f_locals.get('cfg')
        return (kind_of(node), node) if isinstance(node, dict) and 'type' in node else ('', None)
    return type(frame.f_locals['self']).__name__ if 'self' in frame.f_locals else '', None


def _likeness(part: dict[str, Any], owner: Any) -> int:
    """How many settings of a part an object has."""
    held = vars(owner) if hasattr(owner, '__dict__') else {}
    return sum(name in held and isinstance(held[name], PLAIN) and held[name] == value for name, value in part.items())


def _is_short(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 8 and all(map(_is_short, value))
    return isinstance(value, PLAIN) and len(repr(value)) <= 60
