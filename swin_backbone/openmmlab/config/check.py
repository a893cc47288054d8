"""What is wrong with a config, found before anything is built of it: kinds, numbers, and parts that do not fit.

What a class of a toolbox says of its arguments is not taken to the letter, since toolboxes do not keep to it: only a
value of another kind altogether is refused, as a number where a list is expected.
"""

import logging
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter, isclass, signature
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, OPTIMIZERS, DefaultScope
from mmengine.runner import Runner

from ...cost.meta import on_device
from ..error_origin import kind_of, parts_of
from ..errors import ConfigError
from ..swap.consumers import SwappedMaps, check_heads
from ..swap.probe import Level
from .cfg_options import registered
from .paths import datasets_of

# The least that a setting of this name is, wherever it stands; None is not looked at.
LEAST = dict(
    max_epochs=1, max_iters=1, val_interval=1, batch_size=1, num_workers=0, prefetch_factor=1, accumulative_counts=1,
    pad_size_divisor=1, num_classes=1, times=1, base_batch_size=1, num_stages=1, num_outs=1, max_in_a_row=1,
    momentum=0, weight_decay=0, lr=0, eps=0, warmup_iters=0, seed=0,
)  # fmt: skip
INTERVALS = ('interval',)  # of hooks: -1 is never
NUMBERS = (bool, int, float, complex)
PLAIN = (*NUMBERS, str)
BUILT = ('default_hooks', 'custom_hooks', 'param_scheduler')  # what is in these is built
WORDS = {
    int: 'a whole number',
    float: 'a number',
    str: 'a text',
    bool: 'True or False',
    list: 'a list',
    tuple: 'a list',
    Sequence: 'a list',
}
UNIONS = (Union, getattr(types, 'UnionType', Union))
# What of a model's config has as many classes as its data; the others are for regions, or for more than one data set.
HEADS = ('bbox_head', 'decode_head', 'head')
OTHER_CLASSES = ('panoptic_fusion_head', 'semantic_head', 'language_model')


def check_config(cfg: Config) -> None:
    """Look through a config, before anything is built of it.

    Raises:
        ConfigError: naming the key, what it got, and what it takes.
    """
    _check_numbers(cfg._cfg_dict, '')
    level = cfg.get('log_level', 'INFO')
    if not isinstance(logging.getLevelName(level if isinstance(level, str) else ''), int):
        raise ConfigError(f'log_level takes DEBUG, INFO, WARNING, ERROR or CRITICAL, got {level!r}')
    for key in ('model', 'custom_imports'):
        if not isinstance(cfg.get(key, {}), dict):
            raise ConfigError(f'{key} takes a dict, got {cfg[key]!r}')
    _check_kinds(cfg._cfg_dict, '', [Runner], is_exact=True)
    for key in BUILT:
        held = cfg.get(key) or ()
        for name, part in held.items() if isinstance(held, dict) else enumerate(held):
            if isinstance(part, (*PLAIN, list, tuple)) and not (isinstance(held, dict) and 'type' in held):
                raise ConfigError(f'{key}.{name} takes a dict, got {part!r}')
    for key, loader in cfg.items():
        if key.endswith('_dataloader') and isinstance(loader, dict):
            _check_loader(key, loader)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for key, part in parts_of(cfg):
            if not isinstance(part['type'], str) and not callable(part['type']):
                raise ConfigError(f'{key}.type takes the name of a class, got {part["type"]!r}')
            _check_kinds(part, key, [part['type']] if isclass(part['type']) else list(registered(str(part['type']))))


def check_fit(cfg: Config) -> None:
    """See that the parts of a model fit each other, and the classes of the data, before anything is built of them.

    Raises:
        ConfigError: naming the key, what it got, and what it takes.
    """
    start = cfg.get('load_from')
    if start is not None and '://' not in start and not Path(start).is_file():
        raise ConfigError(f'load_from takes a checkpoint, got {start!r}, which is no file')
    model = cfg.get('model')
    if model is None:
        raise ConfigError('model takes a dict, and the config has none')
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer')
    name = optimizer.get('type') if isinstance(optimizer, dict) else None
    if isinstance(name, str) and OPTIMIZERS.get(name) is None:  # of which mmengine says that None cannot be called
        raise ConfigError(f'optim_wrapper.optimizer.type takes the name of an optimizer, got {name!r}')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        _check_channels(model)
        for phase in ('train', 'val', 'test'):
            _check_classes(cfg, model, f'{phase}_dataloader')


def _check_numbers(node: Any, key: str) -> None:
    items: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for name, value in items:
        where = f'{key}.{name}' if key else str(name)
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f'{where} takes a number, got nan')
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if name in LEAST and value < LEAST[name]:
                raise ConfigError(f'{where} takes a number of at least {LEAST[name]}, got {value!r}')
            if name in INTERVALS and value == 0:
                raise ConfigError(f'{where} takes a number of at least 1, or -1 for never, got {value!r}')
        if isinstance(value, str) and name in LEAST:
            raise ConfigError(f'{where} takes a number, got {value!r}')
        _check_numbers(value, where)


def _check_loader(key: str, loader: dict) -> None:
    for part in ('dataset', 'sampler', 'batch_sampler'):
        if (part == 'dataset' or loader.get(part) is not None) and not isinstance(loader.get(part), dict):
            raise ConfigError(f'{key}.{part} takes a dict, got {loader.get(part)!r}')
    for where, base in datasets_of(loader['dataset'], f'{key}.dataset'):
        if not isinstance(base, dict):
            raise ConfigError(f'{where} takes a dict, got {base!r}')
        pipeline = base.get('pipeline', [None])
        if not isinstance(pipeline, (list, tuple)) or not pipeline:
            raise ConfigError(f'{where}.pipeline takes a list of transforms, got {pipeline!r}')
        for index, step in enumerate(pipeline):
            if isinstance(step, PLAIN):
                raise ConfigError(f'{where}.pipeline.{index} takes a dict, got {step!r}')


# --- kinds of values --------------------------------------------------------------------------------------------------


def _check_kinds(node: dict, key: str, classes: Sequence[Any], is_exact: bool = False) -> None:
    """Compare settings with what the constructors of some classes, of which one is meant, say of their arguments."""
    hints = [found for found in map(_hints, classes) if found]
    for name, value in node.items():
        taken = [found[name] for found in hints if name in found]
        if taken and value is not None and not any(_fits(value, hint, is_exact) for hint in taken):
            where = f'{key}.{name}' if key else name
            raise ConfigError(f'{where} takes {_shown(taken[0])}, got {value!r}')


@cache
def _hints(cls: Any) -> Mapping[str, Any]:
    """What a constructor says of its arguments, and those of the classes that it passes them on to."""
    hints: dict[str, Any] = {}
    for base in cls.__mro__ if isclass(cls) else [cls]:
        init = base.__init__ if isclass(base) else base
        try:
            found = get_type_hints(init)
            parameters = signature(init).parameters.values()
        except Exception:  # names that only a type checker imports, builtins
            continue
        for parameter in parameters:
            if parameter.name in found:
                hints.setdefault(parameter.name, found[parameter.name])
        if not any(parameter.kind == Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return hints


def _fits(value: Any, hint: Any, is_exact: bool) -> bool:
    """Whether a value is of the kind that an annotation says: numbers, texts, lists and dicts are four."""
    if get_origin(hint) in UNIONS:
        return any(_fits(value, argument, is_exact) for argument in get_args(hint))
    kind = get_origin(hint) or hint
    if not isclass(kind) or kind is object or isinstance(value, kind):  # Any, Literal, a variable of types
        return True
    is_mapping, is_sequence = issubclass(kind, Mapping), issubclass(kind, (list, tuple, set)) or kind is Sequence
    if isinstance(value, dict):  # also of what is built of it
        return kind not in PLAIN and not is_sequence
    if isinstance(value, str):  # or what a list has, where there is one
        return kind not in NUMBERS and not is_mapping
    if isinstance(value, NUMBERS):  # or one, where a list of them is said
        return kind in NUMBERS or (not is_exact and not is_mapping and (is_sequence or kind is str))
    return True  # a list may hold what is said of one


def _shown(hint: Any) -> str:
    """An annotation as it is read."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return ' or '.join(dict.fromkeys(_shown(one) for one in arguments if one is not type(None)))
    kind = origin or hint
    if isclass(kind) and issubclass(kind, Mapping):
        return 'a dict'
    name = getattr(kind, '__name__', str(kind)).lstrip('_')
    return WORDS.get(kind) or f'{"an" if name[0] in "AEIOU" else "a"} {name}'


# --- parts that fit each other ----------------------------------------------------------------------------------------


def _check_channels(model: dict) -> None:
    """Compare what a backbone of this package emits with what its neck and heads say that they read."""
    for key, part in [('model', model), *parts_of(model, 'model')]:
        backbone = part.get('backbone')
        if not isinstance(backbone, dict) or not kind_of({'type': '', **backbone}).startswith('Swin'):
            continue
        with on_device('meta'), torch.no_grad():
            built = MODELS.build(dict(backbone, init_cfg=None))
        widths = getattr(built, 'out_channels', None)
        if not isinstance(widths, list):
            continue
        neck = part.get('neck')
        first = neck[0] if isinstance(neck, (list, tuple)) and neck else neck
        if isinstance(first, dict):
            channels = first.get('in_channels')
            if isinstance(channels, int):
                channels = [channels]
                widths = widths[-1:] if channels == widths[-1:] else widths
            if isinstance(channels, (list, tuple)) and list(channels) not in (widths, widths[::-1]):
                raise ConfigError(
                    f'{key}.neck.in_channels takes {widths}, which the backbone emits, got {list(channels)}'
                )
        elif not neck:
            levels = [Level(width, 4 << stage) for stage, width in enumerate(widths)]
            check_heads(part, SwappedMaps(levels, levels), key)


def _check_classes(cfg: Config, model: dict, loader: str) -> None:
    if any(name in model for name in OTHER_CLASSES):
        return
    dataset = (cfg.get(loader) or {}).get('dataset')
    for where, base in datasets_of(dataset, f'{loader}.dataset') if isinstance(dataset, dict) else ():
        classes = _classes_of(base)
        for key, number in _numbers_of_classes(model, 'model') if classes else ():
            if number != len(classes):
                raise ConfigError(f'{key}.num_classes takes {len(classes)}, the classes of {where}, got {number!r}')


def _classes_of(dataset: dict) -> Sequence[str]:
    metainfo = dataset.get('metainfo')
    said = metainfo.get('classes') if isinstance(metainfo, dict) else None
    if said is None:
        said = getattr(DATASETS.get(dataset.get('type')), 'METAINFO', {}).get('classes')
    return said if isinstance(said, (list, tuple)) else ()


def _numbers_of_classes(node: Any, key: str, is_head: bool = False) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if is_head and 'num_classes' in node:
            yield key, node['num_classes']
        for name, child in node.items():
            yield from _numbers_of_classes(child, f'{key}.{name}', name in HEADS)
    elif isinstance(node, (list, tuple)):
        for index, child in enumerate(node):
            yield from _numbers_of_classes(child, f'{key}.{index}', is_head)
