"""`--cfg-options KEY=VALUE ...`: values as in mmengine's DictAction, and known keys.

DictAction deletes every space of a value; here spaces stay. mmengine adds unknown keys, so a misspelt key has no
effect; here an unknown key is an error, and `+KEY=VALUE` adds a key.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Optional

from mmengine import registry
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch.utils.data import DataLoader

KEY = re.compile(r'\+?[^+.\s][^.]*(\.[^.]+)*')  # dotted; a leading `+` adds the key
BRACKETS = {'(': ')', '[': ']'}
QUOTES = '\'"'
# Keys that mmengine reads besides the arguments of its Runner, of DataLoader and of set_randomness.
RUNNER_KEYS = {'auto_scale_lr', 'custom_imports', 'find_unused_parameters', 'model_wrapper_cfg', 'sync_bn'}
LOADER_KEYS = {'dataset', 'num_batch_per_epoch'}


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line by their keys.

    A value is an int, float, bool, None or string. `[a,b]` and `a,b` are lists, `(a,b)` is a tuple; they nest. Spaces
    around a value are removed, and spaces inside stay. Quotes protect commas: `["a,b",c]` has two values.

    Raises:
        ValueError: if a word is not KEY=VALUE, or its brackets or quotes do not match.
    """
    options = {}
    for word in words:
        key, equals, value = word.partition('=')
        if not equals or not KEY.fullmatch(key.strip()):
            raise ValueError(f'--cfg-options takes KEY=VALUE, got {word!r:.100}')
        try:
            options[key.strip()] = parse_value(value)
        except ValueError as error:
            raise ValueError(f'--cfg-options {word:.100}: {error}') from error
    return options


def parse_value(text: str) -> Any:
    """Return the value of a text: see `parse_options`."""
    text, quoted = text.strip(), False
    while len(text) > 1 and text[0] in QUOTES and text.find(text[0], 1) == len(text) - 1:
        text, quoted = text[1:-1], True
    has_commas = ',' in text and not quoted
    if has_commas or text.startswith(tuple(BRACKETS)):
        parts, end = _split(text)
        if text[0] in BRACKETS and end == len(text) - 1:
            values = [parse_value(part) for part in _split(text[1:-1])[0]]
            return tuple(values) if text[0] == '(' else values
        if has_commas and (len(parts) > 1 or text.endswith(',')):
            return [parse_value(part) for part in parts]
    return DictAction._parse_int_float_bool(text)


def _split(text: str) -> tuple[list[str], int]:
    """Return the parts between commas outside of brackets and quotes, and the position where the first bracket ends."""
    parts, missing, quote, start, end = [], [], '', 0, -1
    for position, character in enumerate(text):
        if quote:
            quote = '' if character == quote else quote
        elif character in QUOTES and text[:position].rstrip()[-1:] in ('', ',', *BRACKETS):
            quote = character
        elif character in BRACKETS:
            missing.append(BRACKETS[character])
        elif character in BRACKETS.values():
            if not missing:
                raise ValueError(f'a bracket that opens is missing before {text[position:]!r:.100}')
            if character != missing.pop():
                raise ValueError(f'a bracket that closes is missing in {text!r:.100}')
            end = position if end < 0 and not missing else end
        elif character == ',' and not missing:
            parts.append(text[start:position])
            start = position + 1
    if quote or missing:
        raise ValueError(f'a {"quote" if quote else "bracket"} that closes is missing in {text!r:.100}')
    return [*parts, text[start:]] if start < len(text) else parts, end


def apply_options(cfg: Config, options: dict[str, Any]) -> None:
    """Override settings of a config, in place, one after the other.

    Args:
        options: values by dotted keys, with indices of lists. A key is in the config, or an argument of the class of
            its `type`; a leading `+` adds any key.

    Raises:
        ValueError: for an unknown key, naming the nearest, or an index beyond a list.
    """
    for key, value in options.items():
        adds = key.startswith('+')
        path = key.removeprefix('+').split('.')
        with registry.DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            _check_path(cfg, path, adds)
        _set(cfg._cfg_dict, path, value)


def setting_of(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, with or without a leading `+`; None if the config lacks the key."""
    node: Any = cfg._cfg_dict
    for name in key.removeprefix('+').split('.'):
        if isinstance(node, (list, tuple)):
            node = node[int(name)] if name.isdecimal() and int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, dict) else None
    return node


def _set(node: Any, path: list[str], value: Any) -> None:
    """Set a value, also in a list: mmengine's `merge_from_dict` replaces elements of lists by dicts alone."""
    name: Any
    for depth, name in enumerate(path):
        name = int(name) if isinstance(node, list) else name
        if depth == len(path) - 1:
            node[name] = value
        else:
            node = node[name] if isinstance(node, list) else node.setdefault(name, ConfigDict())


def _check_path(cfg: Config, path: list[str], adds: bool) -> None:
    node: Any = cfg._cfg_dict
    for depth, name in enumerate(path):
        where, is_last = '.'.join(path[:depth]), depth == len(path) - 1
        if isinstance(node, list):
            if not name.isdecimal() or int(name) >= len(node):
                raise ValueError(
                    f'--cfg-options {".".join(path)}: {where} is a list of {len(node)}, which takes an index from 0 to '
                    f'{len(node) - 1}, got {name!r}'
                )
            node = node[int(name)]
        elif isinstance(node, dict):
            if name not in node:
                if adds or (is_last and name in _arguments(node, path[:-1])):
                    return
                raise ValueError(_unknown(cfg, path, node, depth))
            node = node[name]
        else:
            raise ValueError(f'--cfg-options {".".join(path)}: {where} is {node!r}, which has no {name!r}')


def _unknown(cfg: Config, path: list[str], node: dict[str, Any], depth: int) -> str:
    """Return a message with the unknown part of a key and the nearest known key."""
    full, parent = '.'.join(path), '.'.join(path[:depth])
    candidates = [*node, *_arguments(node, path[:depth])]
    nearest = get_close_matches(path[depth], candidates, n=1)
    if nearest:
        full_key: Optional[str] = '.'.join([*path[:depth], nearest[0], *path[depth + 1 :]])
    else:  # a key without its beginning
        full_key = next((key for key in _keys(cfg._cfg_dict) if key.endswith(f'.{full}')), None)
    return (
        f'--cfg-options {full}: {parent or "the config"} has no {path[depth]!r}'
        + (f'; did you mean {full_key}?' if full_key else ';')
        + f' To add the key, write +{full}=...'
    )


def _keys(node: Any, prefix: str = '') -> Iterator[str]:
    """Yield every dotted key of a config."""
    items: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in items:
        yield f'{prefix}{name}'
        yield from _keys(child, f'{prefix}{name}.')


def _arguments(node: dict[str, Any], path: Sequence[str]) -> set[str]:
    """Return the arguments of the class that a part of a config names as its `type`."""
    if not path:
        return _parameters(Runner) | RUNNER_KEYS
    if path[-1] == 'randomness':
        return _parameters(Runner.set_randomness)
    if path[-1].endswith('_dataloader'):
        return _parameters(DataLoader) | LOADER_KEYS
    kind = node.get('type')
    classes = [kind] if inspect.isclass(kind) else _registered(kind) if isinstance(kind, str) else ()
    bases = (base for cls in classes for base in (inspect.getmro(cls) if inspect.isclass(cls) else [cls]))
    return set().union(*map(_parameters, bases))


def _registered(name: str) -> Iterator[Any]:
    """Yield the entries of a name in the registries of mmengine and the toolboxes."""
    for root in [entry for entry in vars(registry).values() if isinstance(entry, Registry)]:
        with root.switch_scope_and_registry(None) as scoped:
            entry = scoped.get(name) if '.' in name else _entry(scoped, name)
            if entry is not None:
                yield entry


def _entry(registry: Optional[Registry], name: str) -> Any:
    """Return an entry as `registry.get`, which also imports modules of an unknown name."""
    if registry is not None:
        registry.import_from_location()
    while registry is not None and name not in registry.module_dict:
        registry = registry.parent
    return registry and registry.module_dict[name]


def _parameters(function: Any) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return set()
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != 'self'}
