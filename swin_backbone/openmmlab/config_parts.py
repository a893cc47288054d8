"""The parts of a config: their keys and kinds, and the differences between two configs."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Optional

from mmengine.config import Config
from mmengine.registry import DATASETS, Registry

WIDTH = 100  # characters of a value in the summary
NOT_SET: Any = '(not set)'


def walk(
    node: Any, key: str = '', enters: Callable[[str, Any], bool] = lambda name, child: True
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of a part of a config, and of all entries in it, outer entries first.

    Entries of a dict may change while the dict is yielded.

    Args:
        key: key of the part.
        enters: returns whether an entry is walked, by its name or its index in a list, and its value.
    """
    yield key, node
    entries = node.items() if isinstance(node, (dict, Config)) else ()
    for name, child in enumerate(node) if isinstance(node, (list, tuple)) else entries:
        if enters(str(name), child):
            yield from walk(child, f'{key}.{name}' if key else str(name), enters)


def iter_parts(node: Any, key: str = '') -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dotted key and the dict of each part of a config with a type, outer dicts first."""
    return ((path, part) for path, part in walk(node, key) if path and isinstance(part, dict) and 'type' in part)


def count_bands(backbone: Any) -> int:
    """Return the number of input bands of a backbone, or of its config; 3 without `in_channels`."""
    if isinstance(backbone, dict):
        return int(backbone.get('in_channels', 3))
    return int(getattr(backbone, 'in_channels', 3))


def type_name(part: dict[str, Any]) -> str:
    """Return the name of a part's class without the prefix of a toolbox."""
    cls = part['type']
    return cls.rpartition('.')[2] if isinstance(cls, str) else getattr(cls, '__name__', str(cls))


def find_class(part: dict[str, Any], registry: Registry = DATASETS) -> Optional[type]:
    """Return the class of a part, of a data set or in another registry, by its name in the current scope.

    None if the name is unknown.
    """
    cls = part.get('type')
    if isinstance(cls, str):
        with registry.switch_scope_and_registry(None) as scoped:
            cls = scoped.get(cls)
    return cls if inspect.isclass(cls) else None


def summarize(before: Config, after: Config) -> str:
    """Return the key, the old and the new value of each setting that differs."""
    lines = []
    for key, old, new in _iter_differences('', before.to_dict(), after.to_dict()):
        lines += [key, f'  - {_shorten(old)}', f'  + {_shorten(new)}']
    return '\n'.join(lines)


def _iter_differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new:
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and isinstance(new[0], dict):
        for index, pair in enumerate(zip(old, new)):
            yield from _iter_differences(f'{key}[{index}]', *pair)
    elif not (isinstance(old, dict) and isinstance(new, dict)) or key.endswith('.custom_keys'):
        yield key, old, new  # the names of custom_keys have dots
    elif old.get('type') != new.get('type') and dict(old, type=None) != dict(new, type=None):
        yield key, old, new  # another class has other arguments
    else:
        for name in dict.fromkeys([*old, *new]):
            inner = f'{key}.{name}' if key else str(name)
            yield from _iter_differences(inner, old.get(name, NOT_SET), new.get(name, NOT_SET))


def _shorten(value: Any) -> str:
    if value is NOT_SET:
        return str(NOT_SET)
    text = _format_call(value) if isinstance(value, dict) and 'type' in value else repr(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'


def _format_call(cfg: dict[str, Any]) -> str:
    arguments = (f'{name}={_shorten(value)}' for name, value in cfg.items() if name != 'type')
    return f'{type_name(cfg)}({", ".join(arguments)})'
