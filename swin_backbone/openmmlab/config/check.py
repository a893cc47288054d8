"""Compare parts of a config: channels, statistics of pictures and numbers of classes.

A training with a wrong number can run without an error. Toolboxes raise the errors of all other settings.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, DefaultScope

from ...cost.meta import on_device
from ..errors import ConfigError, kind_of, parts_of
from ..swap.consumers import SwappedMaps, check_heads
from ..swap.probe import Level
from .paths import datasets_of

CLASS_HEADS = ('bbox_head', 'decode_head', 'head')  # heads with the classes of the data
SEVERAL_CLASSES = ('panoptic_fusion_head', 'semantic_head', 'language_model')  # models with classes of several kinds


def check_fit(cfg: Config) -> None:
    """Check that the parts of a model fit each other and the classes of the data.

    Raises:
        ConfigError: with the key, the value and the allowed values.
    """
    model = cfg.get('model')
    if not isinstance(model, dict):
        raise ConfigError(f'model takes a dict, got {model!r}')
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        _check_channels(model)
        _check_statistics(model)
        for phase in ('train', 'val', 'test'):
            _check_classes(cfg, model, f'{phase}_dataloader')


def _check_channels(model: dict[str, Any]) -> None:
    """Compare the channels that a backbone of this package emits with the `in_channels` of its neck and heads."""
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
                    f'{key}.neck.in_channels takes {widths}, the channels of the backbone, got {list(channels)}'
                )
        elif not neck:
            levels = [Level(width, 4 << stage) for stage, width in enumerate(widths)]
            check_heads(part, SwappedMaps(levels, levels), key)


def _check_statistics(model: dict[str, Any]) -> None:
    """Check that a preprocessor has a mean and a deviation for each channel of the backbone."""
    for key, part in [('model', model), *parts_of(model, 'model')]:
        statistics, backbone = part.get('data_preprocessor'), part.get('backbone')
        if not isinstance(statistics, dict) or not isinstance(backbone, dict):
            continue
        channels = backbone.get('in_channels', 3)
        allowed = {channels} if channels in (1, 3) else {1, channels}  # mmengine's own preprocessor takes 1 or 3
        for name in ('mean', 'std'):
            values = statistics.get(name)
            if values is not None and (not isinstance(values, (list, tuple)) or len(values) not in allowed):
                numbers = (
                    f'{channels} numbers, one for each channel,' if len(allowed) == 1 else '1 number for all channels,'
                )
                raise ConfigError(f'{key}.data_preprocessor.{name} takes {numbers} got {values!r}')


def _check_classes(cfg: Config, model: dict[str, Any], loader: str) -> None:
    if any(name in model for name in SEVERAL_CLASSES):
        return
    dataset = (cfg.get(loader) or {}).get('dataset')
    for where, base in datasets_of(dataset, f'{loader}.dataset') if isinstance(dataset, dict) else ():
        classes = _classes_of(base)
        for key, number in _numbers_of_classes(model, 'model') if classes else ():
            if number != len(classes):
                raise ConfigError(f'{key}.num_classes takes {len(classes)}, the classes of {where}, got {number!r}')


def _classes_of(dataset: dict[str, Any]) -> Sequence[str]:
    metainfo = dataset.get('metainfo')
    classes = metainfo.get('classes') if isinstance(metainfo, dict) else None
    if classes is None:
        classes = getattr(DATASETS.get(dataset.get('type')), 'METAINFO', {}).get('classes')
    return classes if isinstance(classes, (list, tuple)) else ()


def _numbers_of_classes(node: Any, key: str, is_head: bool = False) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if is_head and 'num_classes' in node:
            yield key, node['num_classes']
        for name, child in node.items():
            yield from _numbers_of_classes(child, f'{key}.{name}', name in CLASS_HEADS)
    elif isinstance(node, (list, tuple)):
        for index, child in enumerate(node):
            yield from _numbers_of_classes(child, f'{key}.{index}', is_head)
