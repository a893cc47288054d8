"""`--cfg-options KEY=VALUE ...`: values as in mmengine's DictAction, and known keys.

DictAction deletes every space of a value; here spaces stay. mmengine adds unknown keys, so a misspelt key has no
effect; here an unknown key is an error, and `+KEY=VALUE` adds a key.
"""

import inspect
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from mmengine import registry
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.registry import DefaultScope, Registry
from mmengine.runner import Runner

from ...openmmlab.config_parts import walk

# Characters of Unicode's private area replace spaces, and commas inside quotes, until DictAction has finished.
PLACEHOLDERS = {' ': '\ue000', ',': '\ue001'}
QUOTED = re.compile(r'(?:^|(?<=[,(\[]))\s*(["\'])([^(\[].*?)\1\s*(?=[,)\]]|$)')
DICT = re.compile(r'(?:^|[,(\[])\s*(?:dict\(|\{\s*(?:\}|"\w+"\s*:|\'\w+\'\s*:))')
AROUND_VALUES = re.compile(r'(?<=[,(\[])\s+|\s+(?=[,)\]])')  # spaces around the values of a list
# Keys that mmengine reads besides the arguments of its Runner
RUNNER_KEYS = {'auto_scale_lr', 'custom_imports', 'find_unused_parameters', 'model_wrapper_cfg', 'sync_bn'}


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line by their keys.

    A value is an int, float, bool, None or string. `[a,b]` and `a,b` are lists, `(a,b)` is a tuple; they nest. Spaces
    around a value are removed, and spaces inside stay. Quotes protect commas: `["a,b",c]` has two values.

    Raises:
        ValueError: if a word is not KEY=VALUE, its brackets do not match, or its value has a dict.
    """
    options = {}
    for word in words:
        key, equals, value = word.partition('=')
        if not equals:
            raise ValueError(f'--cfg-options takes KEY=VALUE, got {word!r:.100}')
        if DICT.search(QUOTED.sub('', value)):
            raise ValueError(f'--cfg-options {word:.100}: a dict is set key by key, as a.type=N, in a list a.0.type=N')
        try:
            options[key.strip()] = parse_value(value)
        except (AssertionError, RecursionError) as error:
            raise ValueError(f'--cfg-options {word:.100}: the brackets do not match') from error
    return options


def parse_value(text: str) -> Any:
    """Return the value of a text: see `parse_options`."""
    placeholders = str.maketrans(PLACEHOLDERS)
    text = QUOTED.sub(lambda quoted: quoted[2].translate(placeholders), text.strip())
    return _restore(DictAction._parse_iterable(AROUND_VALUES.sub('', text).replace(' ', PLACEHOLDERS[' '])))


def _restore(value: Any) -> Any:
    """Put spaces and commas back in the place of their placeholders."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_restore, value))
    if isinstance(value, str):
        for character, placeholder in PLACEHOLDERS.items():
            value = value.replace(placeholder, character)
    return value


def apply_options(cfg: Config, options: dict[str, Any]) -> None:
    """Override settings of a config, in place, one after the other.

    Args:
        options: values by dotted keys, with indices of lists. A key is in the config, or an argument of the class of
            its `type`; a leading `+` adds any key.

    Raises:
        ValueError: for an unknown key, naming the nearest, or an index beyond a list.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for key, value in options.items():
            _set(cfg, key.removeprefix('+').split('.'), value, adds=key.startswith('+'))


def get_setting(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, with or without a leading `+`; None if the config lacks the key."""
    return next((node for where, node in walk(cfg) if where == key.removeprefix('+')), None)


def _set(cfg: Config, path: list[str], value: Any, adds: bool) -> None:
    """Set a value, also in a list: mmengine's `merge_from_dict` replaces elements of lists only by dicts."""
    node: Any = cfg._cfg_dict
    for depth, name in enumerate(path):
        key: Any = name
        where = '.'.join(path[:depth])
        is_last = depth == len(path) - 1
        if isinstance(node, list):
            if not name.isdecimal() or int(name) >= len(node):
                raise ValueError(
                    f'--cfg-options {".".join(path)}: {where} is a list of {len(node)}, which takes an index from 0 to '
                    f'{len(node) - 1}, got {name!r}'
                )
            key = int(name)
        elif not isinstance(node, dict):
            raise ValueError(f'--cfg-options {".".join(path)}: {where} is {node!r}, which has no {name!r}')
        elif name not in node:
            if not adds and not (is_last and _takes(node, where, name)):
                raise ValueError(_describe_unknown(cfg, path, node, depth))
            node[name] = ConfigDict()
        if is_last:
            node[key] = value
        node = node[key]


def _takes(node: dict[str, Any], where: str, name: str) -> bool:
    """Return whether a dict takes a new key, as an argument of its class or function.

    Some classes ignore unknown arguments, such as mmseg's IoUMetric and Mask2FormerHead.
    """
    if not where:
        return name in RUNNER_KEYS or name in _list_parameters(Runner)
    if 'type' in node:
        return name in _list_arguments(node['type'])
    return where.endswith('_dataloader') or where == 'randomness'  # functions that refuse unknown arguments


def _list_arguments(class_or_name: Any) -> set[str]:
    """Return the arguments of a class, or of all registered classes of a name."""
    classes = [class_or_name]
    if isinstance(class_or_name, str):
        roots = [entry for entry in vars(registry).values() if isinstance(entry, Registry)]
        classes = []
        for root in roots:
            with root.switch_scope_and_registry(None) as scoped:
                classes.append(scoped.get(class_or_name))
    return {
        name for cls in classes if cls for base in getattr(cls, '__mro__', (cls,)) for name in _list_parameters(base)
    }


def _list_parameters(function: Any) -> set[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return set()
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _describe_unknown(cfg: Config, path: list[str], node: dict[str, Any], depth: int) -> str:
    """Return a message with the unknown part of a key and the nearest known key."""
    option = '.'.join(path)
    parent = '.'.join(path[:depth])
    names = [*node, *(_list_arguments(node['type']) if 'type' in node else ())]
    near_names = get_close_matches(path[depth], names, 1)
    nearest = ['.'.join([*path[:depth], name, *path[depth + 1 :]]) for name in near_names]
    nearest = nearest or [key for key, _ in walk(cfg) if key.endswith(f'.{option}')]  # a key without its beginning
    return (
        f'--cfg-options {option}: {parent or "the config"} has no {path[depth]!r}'
        + (f'; did you mean {nearest[0]}? To' if nearest else '; to')
        + f' add the key, write +{option}=...'
    )
