"""A readable summary of the differences between two configs."""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from .errors import kind_of

WIDTH = 100  # characters of a value in the summary
NOT_SET: Any = '(not set)'


def summarize(before: Config, after: Config) -> str:
    """Return the key, the old and the new value of each setting that differs."""
    lines = []
    for key, old, new in _differences('', before.to_dict(), after.to_dict()):
        lines += [key, f'  - {_shown(old)}', f'  + {_shown(new)}']
    return '\n'.join(lines)


def _differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new:
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and isinstance(new[0], dict):
        for index, pair in enumerate(zip(old, new)):
            yield from _differences(f'{key}[{index}]', *pair)
    elif not (isinstance(old, dict) and isinstance(new, dict)):
        yield key, old, new
    elif key.endswith('.custom_keys'):
        yield key, old, new  # the names of custom_keys have dots
    elif old.get('type') != new.get('type') and dict(old, type=None) != dict(new, type=None):
        yield key, old, new  # another class has other arguments
    else:
        for name in dict.fromkeys([*old, *new]):
            inner = f'{key}.{name}' if key else str(name)
            yield from _differences(inner, old.get(name, NOT_SET), new.get(name, NOT_SET))


def _shown(value: Any) -> str:
    if value is NOT_SET:
        return str(NOT_SET)
    text = _call(value) if isinstance(value, dict) and 'type' in value else repr(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'


def _call(cfg: dict[str, Any]) -> str:
    arguments = (f'{name}={_shown(value)}' for name, value in cfg.items() if name != 'type')
    return f'{kind_of(cfg)}({", ".join(arguments)})'
