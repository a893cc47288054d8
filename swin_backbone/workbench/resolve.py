"""Resolve a config: combine it with options and data. No file is read.

The steps have an order: swap the backbone, put the data, apply options, derive settings. Options follow the swap,
because their keys may be of the new backbone. Settings follow the options, because they depend on these, and options
have the last word. The result is a plain config of its toolbox, whose own tools/train.py trains it.
"""

import copy
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config

from ..openmmlab.config_files import OWN
from ..openmmlab.errors import ConfigError, parts_of
from ..openmmlab.swap.replace import swap_backbone
from ..options import Options
from .configs.cfg_options import apply_options, setting_of
from .configs.paths import datasets_in
from .configs.training_settings import apply_settings, enable_auto_scale_lr, fit_schedule, has_settings
from .data.balance import Counted, apply_balance
from .data.load_picture import OURS, name_loaders
from .data.own_data.config import put_data
from .data.own_data.prepare import Dataset

OWN_DATA = 'own_data is no key of a config: give --data D, and --classes NAMES for names (in Python data=, classes=)'


def resolve(
    config: Config,
    options: Optional[Options] = None,
    data: Optional[Dataset] = None,
    counted: Optional[Counted] = None,
    processes: int = 1,
) -> Config:
    """Return the config that is trained, tested and saved. `config` stays unchanged.

    Args:
        config: of mmdet, mmseg or mmpretrain.
        options: `backbone`, `at` and `recipe` of a swap, `cfg_options`, the settings of a training, `work_dir` and
            `launcher`.
        data: takes the place of the config's data sets, evaluators and numbers of classes.
        counted: pictures of an epoch, and classes for `balance`. Default: those of `data`; without data, the schedule
            stays.
        processes: of the training.

    Raises:
        ConfigError: if options contradict the data or each other, or the config cannot take one of these.
        ValueError: for an unknown backbone or key.
    """
    options = options or Options()
    return set_training(combine(config, options, data), options, data, counted, processes)


def combine(config: Config, options: Options, data: Optional[Dataset] = None) -> Config:
    """Return a config with another backbone, other data, and `cfg_options`. Arguments and errors: see `resolve`."""
    settings = options.cfg_options or {}
    if 'own_data' in config or any(key.lstrip('+').startswith('own_data') for key in settings):
        raise ConfigError(OWN_DATA)
    backbone = options.backbone
    cfg: Config = (
        swap_backbone(config, backbone, at=options.at, recipe=options.recipe) if backbone else copy.deepcopy(config)
    )
    if 'type' in (cfg.get('train_cfg') or {}):
        cfg.train_cfg.pop('by_epoch', None)  # mmdet's solov2-light_* has it, and mmengine's loops refuse it
    if data is not None:
        put_data(cfg, data)
        for _, dataset in datasets_in(cfg, 'train'):
            dataset.pop('filter_cfg', None)  # small pictures, and those without objects, are trained on
    apply_options(cfg, settings)
    if data is not None:
        _require_agreement(cfg, data, settings)
    _name_own_loaders(cfg)
    name = Path(config.filename or 'config').stem + (f'_{backbone}' if backbone else '')
    cfg.work_dir = str(options.work_dir or cfg.get('work_dir') or Path('work_dirs', name))
    cfg.launcher = options.launcher
    return cfg


def _name_own_loaders(cfg: Config) -> None:
    """Let all pipelines load pictures by this package, which the config imports then."""
    name_loaders(cfg)
    if any(part['type'] == OURS for _, part in parts_of(cfg)):
        imports = cfg.setdefault('custom_imports', {}).setdefault('imports', [])
        if OWN not in imports:
            cfg.custom_imports['imports'] = [*([imports] if isinstance(imports, str) else imports), OWN]


def _require_agreement(cfg: Config, data: Dataset, options: dict[str, Any]) -> None:
    """Raise ConfigError if an option sets a key that the data decide."""
    again = copy.deepcopy(cfg)
    put_data(again, data)
    for key in options:
        given, made = setting_of(cfg, key), setting_of(again, key)
        if made != given and repr(made) != repr(given):  # NaN equals no number
            raise ConfigError(f'{key} follows from --data, which makes it {made!r}, got {given!r}')


def set_training(
    config: Config,
    options: Options,
    data: Optional[Dataset] = None,
    counted: Optional[Counted] = None,
    processes: int = 1,
) -> Config:
    """Return a config with the settings of a training. Arguments and errors: see `resolve`."""
    cfg: Config = copy.deepcopy(config)
    given = options.cfg_options or {}
    if counted is None and data is not None:
        counted = Counted(data.splits['train'].pictures)
    if not has_settings(options) and counted is None:
        return cfg
    apply_settings(cfg, options)
    if counted is not None and (options.epochs is not None or data is not None):
        fit_schedule(cfg, counted.pictures, processes, options.epochs)
    if options.auto_scale_lr:
        enable_auto_scale_lr(cfg)
    kept = dict(given)
    if len(cfg.get('param_scheduler') or ()) != len(config.get('param_scheduler') or ()):  # indices have moved
        kept = {key: value for key, value in kept.items() if not key.lstrip('+').startswith('param_scheduler.')}
    apply_options(cfg, kept)
    if options.balance and counted is not None:
        twice = [key for key in given if 'class_weight' in key] if counted.weights else []
        if twice:
            raise ConfigError(f'--balance and --cfg-options {twice[0]} are one setting: leave out one of them')
        apply_balance(cfg, counted)  # last, because keys of options refer to the wrapped data set
    _name_own_loaders(cfg)
    return cfg
