"""Errors of data, configs and trainings, and one line for each error of a toolbox: config key, file, message.

Toolboxes use assertions, or fail inside a layer. The config key is found from the objects in the traceback. The config
itself is found by the name of a local variable: a function that has a config calls it `cfg`. Functions of the packages
`KEY_NAMING_PACKAGES` are left out.
"""

import linecache
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Optional

from mmengine.config import Config

from ..checkpoints.errors import CheckpointError
from ..checks import DataError
from .config_parts import iter_parts, type_name

WORKER_TRACEBACK = 'Original Traceback (most recent call last)'
MAX_MESSAGE = 1000  # characters
DATA_ERROR = f'{DataError.__module__}.DataError: '
# mmseg's MaskFormer and Mask2Former heads predict masks of the whole picture for each cut of it.
SLIDE_HINT = "; with mode='whole' in model.test_cfg, tools/infer_tiles.py cuts pictures for every head"
EXAMPLES = 3  # for each kind of fault


class Faults:
    """Faults of many items: a number for each kind, and the first examples."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, kind: str, example: str, count: int = 1) -> None:
        self.counts[kind] += count
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def update(self, other: 'Faults', file: str = '') -> None:
        """Add further faults. With `file`, each kind begins with the name of the file."""
        for kind, examples in other.examples.items():
            named_kind = f'{file}: {kind}' if file else kind
            self.counts[named_kind] += other.counts[kind]
            self.examples[named_kind] = [*self.examples.get(named_kind, ()), *examples][:EXAMPLES]

    def sentences(self) -> list[str]:
        """Return a sentence for each kind."""
        return [f'{kind}: {self.counts[kind]}, as {"; ".join(examples)}' for kind, examples in self.examples.items()]


class TrainingStopped(RuntimeError):
    """The early end of a training: one sentence with the reason and the way to continue."""


class ConfigError(ValueError):
    """An error in a config: one sentence with the key, the value and the allowed values."""


KEY_NAMING_PACKAGES = (f'{__package__}.', f'{__package__.partition(".")[0]}.workbench.')  # their errors name the key
COMPLETE_ERRORS = (CheckpointError, ConfigError, TrainingStopped)  # messages with key and file


def describe_error(error: BaseException) -> str:
    """Return an error in one line with key and file of the config, as `model.neck of a.py: AssertionError: ...`.

    Without a config in the traceback, the line is only the message.
    """
    if isinstance(error, DataError):  # torch puts the traceback of a worker process before the message
        return str(error).rpartition(DATA_ERROR)[2].strip()
    if isinstance(error, COMPLETE_ERRORS):
        return _join_lines(str(error))
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f'{error.filename} ({error.strerror})'
    location = _find_config_place(error)
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    hint = SLIDE_HINT if 'slide_inference' in names else ''
    return (f'{location}: ' if location else '') + _format_message(error) + hint


def _format_message(error: BaseException) -> str:
    """Return the message in one line, with the type of an unusual error."""
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if WORKER_TRACEBACK in message:  # torch adds the traceback of the worker process
        message = message.strip().rpartition('\n')[2]
    message = _join_lines(message)
    if not message:  # an assert has none
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        message = f'`{linecache.getline(frame.f_code.co_filename, line).strip()}` failed'
    return message if isinstance(error, (ValueError, TypeError, OSError)) else f'{type(error).__name__}: {message}'


def _join_lines(message: str) -> str:
    message = ' '.join(message.split())
    return message if len(message) <= MAX_MESSAGE else f'{message[:MAX_MESSAGE]}...'


def _find_config_place(error: BaseException) -> str:
    """Return key and file of the config part that raised an error, as `model.neck of a.py`, or ''."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    cfg = next(filter(None, map(_find_config, frames)), None)
    if cfg is None:
        return ''
    for frame in reversed(frames):
        for name, settings in _iter_objects(frame):
            parts = [(key, part) for key, part in iter_parts(cfg) if type_name(part) == name]
            if parts:
                key, _ = max(parts, key=lambda item: (item[1] == settings, _count_equal(item[1], settings)))
                return f'{key} of {cfg.filename}' if cfg.filename else key
    return ''


def _iter_objects(frame: FrameType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield class name and settings of the config parts among a frame's variables, then of the method's object.

    Functions of this folder and of the workbench are left out, because their errors name a key. Constructors are left
    out, because the caller has the config, and a new object has few attributes.
    """
    if frame.f_globals.get('__name__', '').startswith(KEY_NAMING_PACKAGES) or frame.f_code.co_name == '__init__':
        return
    for value in frame.f_locals.values():
        if isinstance(value, dict) and 'type' in value:
            yield type_name(value), value
    if 'self' in frame.f_locals:
        owner = frame.f_locals['self']
        yield type(owner).__name__, getattr(owner, '__dict__', {})


def _find_config(frame: FrameType) -> Optional[Config]:
    """Return the config among the local variables of a frame."""
    for name in ('cfg', 'runner', 'self'):  # see the head of this file
        value = frame.f_locals.get(name)
        value = vars(value).get('cfg') if name != 'cfg' and hasattr(value, '__dict__') else value
        if isinstance(value, Config):
            return value
    return None


def _count_equal(part: dict[str, Any], settings: Mapping[str, Any]) -> int:
    """Count the plain values of a config part that equal the settings or attributes of an object."""
    plain = (bool, int, float, str, list, tuple, type(None))
    return sum(
        name in settings and isinstance(settings[name], plain) and settings[name] == value
        for name, value in part.items()
    )
