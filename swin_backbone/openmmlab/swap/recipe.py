"""The optimizer of the Swin recipe (Liu et al. 2021, sections 4.1 to 4.3) for any config."""

from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS

from ...devices import on_device
from ..config_parts import type_name
from .variants import Task

# Learning rates are for BATCH pictures per step, a classifier's for CLASSIFIER_BATCH.
ADAMW = dict(
    detection=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    segmentation=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    classification=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
)
BATCH = 16
CLASSIFIER_BATCH = 1024
LAYER_DECAY = 'SwinLayerDecayOptimizerConstructor'  # in openmmlab/layer_decay.py
POSITION_KEYS = ('absolute_pos_embed', 'relative_position_bias_table', 'w_msa.cpb_mlp', 'w_msa.logit_scale')


def apply_recipe(cfg: Config, backbone: str, swin: dict[str, Any], task: Task) -> None:
    """Put the recipe's optimizer into a config, in place.

    A config with AdamW (the DETR family, RTMDet, SegFormer) keeps its rate, decay and multipliers, which belong to its
    heads. The backbone's norms and position tables lose their decay. A config with `LAYER_DECAY` is made for a Swin,
    and keeps its optimizer. All configs keep `bypass_duplicate`, for shared parameters. A classifier's rate is scaled
    from 1024 images per step to `auto_scale_lr.base_batch_size` of the config. For all other models, `base_batch_size`
    becomes 16. An `eta_min` at or above the new rate becomes 0.

    Args:
        backbone: prefix of the backbone's parameters, as 'backbone', 'detector.backbone' or 'img_backbone'.
        swin: config of the backbone.

    Raises:
        ValueError: if `optim_wrapper` has no single optimizer.
    """
    wrapper = cfg.get('optim_wrapper')
    if wrapper is None or find_constructor(wrapper) == LAYER_DECAY:
        return
    if 'optimizer' not in wrapper:
        raise ValueError('optim_wrapper has no optimizer to exchange; --recipe keep keeps optim_wrapper')
    constructor = wrapper.pop('constructor', None)
    paramwise = wrapper.pop('paramwise_cfg', None) or {}
    if type_name(wrapper.optimizer) == 'AdamW' and constructor is None:
        keys = {**paramwise.get('custom_keys', {}), **_make_no_decay_keys(backbone, swin, paramwise)}
        wrapper.paramwise_cfg = dict(paramwise, custom_keys=keys)
    else:
        wrapper.optimizer = dict(ADAMW[task])
        wrapper.paramwise_cfg = dict(
            custom_keys={**{key: dict(decay_mult=0.0) for key in POSITION_KEYS}, 'norm': dict(decay_mult=0.0)}
        )
        if task == 'classification':
            images = (cfg.get('auto_scale_lr') or {}).get('base_batch_size', CLASSIFIER_BATCH)
            wrapper.optimizer.lr *= images / CLASSIFIER_BATCH
            wrapper.paramwise_cfg.update(norm_decay_mult=0.0, bias_decay_mult=0.0)
        else:
            cfg.auto_scale_lr = dict(cfg.get('auto_scale_lr') or {}, base_batch_size=BATCH)
        if 'bypass_duplicate' in paramwise:
            wrapper.paramwise_cfg.bypass_duplicate = paramwise['bypass_duplicate']
    schedulers: Any = cfg.get('param_scheduler') or []
    for scheduler in [schedulers] if isinstance(schedulers, dict) else schedulers:
        if scheduler.get('eta_min', 0) >= wrapper.optimizer.lr:
            scheduler['eta_min'] = 0.0


def find_constructor(wrapper: dict[str, Any]) -> Any:
    """Return the name of a wrapper's constructor without the prefix of a toolbox, or None."""
    constructor = wrapper.get('constructor')
    return constructor and type_name(dict(type=constructor))


def _make_no_decay_keys(backbone: str, swin: dict[str, Any], paramwise: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return custom keys for norms and position tables, with the config's learning rate of the backbone.

    mmengine applies only the longest key in a parameter's name. Therefore each new key repeats the multiplier of the
    backbone, and is longer than the backbone's name.
    """
    keys = paramwise.get('custom_keys', {})
    multipliers: dict[str, Any] = next(
        (keys[name] for name in (backbone, backbone.rpartition('.')[2], 'backbone') if name in keys), {}
    )
    lr_mult = multipliers.get('lr_mult', 1.0)
    with on_device('meta'):
        layers = MODELS.build(dict(swin, init_cfg=None)).layer_order()
    prefixes = [prefix for layer in layers for prefix in layer if prefix not in POSITION_KEYS]
    norms = [f'{backbone}.{prefix}' + ('' if prefix.startswith('norm') else '.norm') for prefix in prefixes]
    return {name: dict(lr_mult=lr_mult, decay_mult=0.0) for name in (*norms, *POSITION_KEYS)}
