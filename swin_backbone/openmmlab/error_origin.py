"""Where in a config an error comes from.

Toolboxes assert, or fail where a tensor meets a weight; what their users wrote is a setting of a config. The innermost
object at work that the config describes says which.
"""

import linecache
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Optional

from mmengine.config import Config
from mmengine.registry import build_from_cfg

MOST_SETTINGS = 6  # that are shown
PLAIN = (bool, int, float, str, list, tuple, type(None))


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
