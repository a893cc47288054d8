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
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, OPTIMIZERS, DefaultScope
from mmengine.runner import Priority, Runner, get_priority

from ...cost.meta import on_device
from ..errors import ConfigError, kind_of, parts_of
from ..swap.consumers import SwappedMaps, check_heads
from ..swap.probe import Level
from .cfg_options import registered
from .paths import datasets_of

NUMBERS = (bool, int, float, complex)
PLAIN = (*NUMBERS, str)
HOOKS = ('default_hooks', 'custom_hooks')
BUILT = (*HOOKS, 'param_scheduler')  # what is in these is built
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


class Range(NamedTuple):
    """What a number may be."""

    least: float
    most: float = math.inf
    is_above: bool = False  # the least itself is not taken

    def takes(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.is_above and value == self.least)

    def __str__(self) -> str:
        if self.most < math.inf:
            return f'a number from {self.least:g} to {self.most:.10g}'
        return f'a number above {self.least:g}' if self.is_above else f'a number of at least {self.least:g}'


ANY, FROM_0, FROM_1, ABOVE_0, SHARE = Range(-math.inf), Range(0), Range(1), Range(0, is_above=True), Range(0, 1)
BATCH, WORKERS, SEED = Range(1, 1_000_000), Range(0, 512), Range(0, 2**32 - 1)  # each worker is a process of 0.5 GB


def _ranges(*named: tuple[Range, str]) -> dict[str, Range]:
    return {name: kind for kind, names in named for name in names.split()}


# What the numbers of a setting may be: by its name, wherever it stands, and within parts of a config of these keys.
# What is not here is left to the class that takes it. None is not looked at.
RANGES = _ranges(
    (FROM_1, 'max_epochs max_iters val_interval prefetch_factor accumulative_counts pad_size_divisor'),
    (FROM_1, 'num_classes times base_batch_size num_stages num_outs max_in_a_row num_batch_per_epoch'),
    (FROM_0, 'momentum weight_decay lr eps warmup_iters val_begin save_begin'),
    (BATCH, 'batch_size'),
    (WORKERS, 'num_workers'),
    (SEED, 'seed'),
    (FROM_0, 'loss_weight lr_mult decay_mult bias_lr_mult bias_decay_mult norm_decay_mult dwconv_decay_mult'),
    (ABOVE_0, 'max_norm clip_value'),
    (SHARE, 'prob drop_rate attn_drop_rate drop_path_rate'),
    (SHARE, 'pos_iou_thr neg_iou_thr min_pos_iou iou_threshold'),
)
RANGES_WITHIN = {
    'param_scheduler': _ranges(
        (FROM_0, 'begin gamma power eta_min eta_max min_value patience cooldown threshold restart_weights eps'),
        (FROM_1, 'end T_max step_size milestones periods total_steps epoch_length'),
        (SHARE, 'factor start_factor end_factor eta_min_ratio pct_start'),
        (ABOVE_0, 'div_factor final_div_factor'),
        (Range(-1), 'last_step'),
    ),
    'sampler': _ranges(
        (FROM_1, 'num num_bins num_sample_class num_datasets min_kept context num_repeats'),
        (SHARE, 'pos_fraction floor_fraction thresh iou_thr score_thr'),
        (FROM_0, 'source_ratio dataset_ratio bias k'),
        (Range(-1), 'neg_pos_ub floor_thr dataset_size'),
    ),
    'log_processor': _ranges((FROM_1, 'window_size')),
    'data_preprocessor': _ranges(
        (ABOVE_0, 'std second_std'),
        (FROM_1, 'size size_divisor mask_stride pairwise_size pairwise_dilation'),
        (FROM_0, 'bottom_pixels_removed'),
        (SHARE, 'pairwise_color_thresh'),
        (ANY, 'mean second_mean'),
    ),
}
OR_MINUS_1 = dict(interval='never', max_keep_ckpts='all')  # else at least 1; what -1 stands for


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
            if key in HOOKS and isinstance(part, dict):
                _check_hook(f'{key}.{name}', part)
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
        _check_statistics(model)
        for phase in ('train', 'val', 'test'):
            _check_classes(cfg, model, f'{phase}_dataloader')


def _check_numbers(node: Any, key: str, name: str = '', within: str = '') -> None:
    """Compare every number of a part of a config with what a setting of its name takes.

    Args:
        name: of the setting that has the part.
        within: the key of `RANGES_WITHIN` that the part stands under.
    """
    if isinstance(node, (dict, list, tuple)):
        is_dict = isinstance(node, dict)
        within = next((part for part in RANGES_WITHIN if name.endswith(part)), within)
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for child, value in children:
            where = f'{key}.{child}' if key else str(child)
            _check_numbers(value, where, str(child) if is_dict else name, within)
        return
    takes = RANGES_WITHIN.get(within, {}).get(name) or RANGES.get(name)
    if isinstance(node, str) and takes:
        raise ConfigError(f'{key} takes a number, got {node!r}')
    if not isinstance(node, (int, float)) or isinstance(node, bool):
        return
    if math.isnan(node):
        raise ConfigError(f'{key} takes a number, got nan')
    if takes and not takes.takes(node):
        raise ConfigError(f'{key} takes {takes}, got {node!r}')
    if name in OR_MINUS_1 and node < 1 and node != -1:
        raise ConfigError(f'{key} takes a number of at least 1, or -1 for {OR_MINUS_1[name]}, got {node!r}')


def _check_hook(key: str, hook: dict[str, Any]) -> None:
    if 'type' not in hook:
        raise ConfigError(f'{key} takes a dict with the type of a hook, got {hook!r}')
    try:
        get_priority(hook.get('priority') or 'NORMAL')
    except (KeyError, TypeError, ValueError):
        names = ', '.join(name for name in Priority.__members__)
        raise ConfigError(f'{key}.priority takes {names}, or 0 to 100, got {hook["priority"]!r}') from None


def _check_loader(key: str, loader: dict[str, Any]) -> None:
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


def _check_kinds(node: dict[str, Any], key: str, classes: Sequence[Any], is_exact: bool = False) -> None:
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
        return any(_fits(value, one, is_exact) for one in get_args(hint) if one is not type(None))
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


def _check_channels(model: dict[str, Any]) -> None:
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


def _check_statistics(model: dict[str, Any]) -> None:
    """See that a preprocessor has a mean and a deviation for each channel that the backbone beside it reads."""
    for key, part in [('model', model), *parts_of(model, 'model')]:
        statistics, backbone = part.get('data_preprocessor'), part.get('backbone')
        if not isinstance(statistics, dict) or not isinstance(backbone, dict):
            continue
        channels = backbone.get('in_channels', 3)
        for name in ('mean', 'std'):
            values = statistics.get(name)
            if values is not None and (not isinstance(values, (list, tuple)) or len(values) != channels):
                raise ConfigError(
                    f'{key}.data_preprocessor.{name} takes {channels} numbers, one for each channel, got {values!r}'
                )


def _check_classes(cfg: Config, model: dict[str, Any], loader: str) -> None:
    if any(name in model for name in OTHER_CLASSES):
        return
    dataset = (cfg.get(loader) or {}).get('dataset')
    for where, base in datasets_of(dataset, f'{loader}.dataset') if isinstance(dataset, dict) else ():
        classes = _classes_of(base)
        for key, number in _numbers_of_classes(model, 'model') if classes else ():
            if number != len(classes):
                raise ConfigError(f'{key}.num_classes takes {len(classes)}, the classes of {where}, got {number!r}')


def _classes_of(dataset: dict[str, Any]) -> Sequence[str]:
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
