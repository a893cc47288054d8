"""Resolve a config: combine it with options and data.

1. `combine`, for all commands, swaps the backbone, replaces the data, and applies `--cfg-options`, whose keys may be of
   the new backbone.
2. `resolve_training`, only for a training, sets what its options name, and scales the schedule to the pictures of an
   epoch.

The second applies `--cfg-options` again after the settings and after the schedule, so that a key of the user stays.
Keys of `param_scheduler` do not, if an entry was removed: the indices move. Mixed precision, initial weights, `resume`,
pictures and balance are set last.

The result is a plain config of its toolbox, whose own tools/train.py trains it.
"""

import copy
import math
from pathlib import Path
from typing import Any, NamedTuple, Optional

from mmengine.config import Config
from mmengine.utils import import_modules_from_strings

from ..openmmlab.config_parts import iter_parts, summarize, type_name
from ..openmmlab.errors import ConfigError
from ..openmmlab.swap.backbone import swap_backbone
from ..options import DEFAULTS, TRAINING_SETTINGS, Options
from .configs.amp import enable_amp
from .configs.cfg_options import apply_options, get_setting
from .configs.data_parts import list_dataset_configs
from .configs.initial_weights import set_initial_weights
from .configs.training_settings import apply_settings, describe_lr, scale_schedule, set_workers
from .configs.visualizer import enable_vis
from .data.balance import EpochPlan, apply_balance, plan_epoch
from .data.datasets import BuiltDatasets
from .data.load_picture import use_load_picture
from .data.prepare.config import put_data, test_on_held_out
from .data.prepare.user_data import UserData
from .runner.launchers import read_rank, read_world_size

LR = 'optim_wrapper.optimizer.lr'
SCALED_NOTE = (
    'of --cfg-options is scaled with the schedule: an entry of param_scheduler has no length left and is removed, so '
    'the indices have moved'
)


def combine(config: Config, options: Options, data: Optional[UserData] = None) -> Config:
    """Return a config with another backbone, other data, and `cfg_options`. `config` stays unchanged.

    Args:
        config: a config of mmdet, mmseg or mmpretrain.
        options: `backbone`, `at` and `recipe` of a swap, `cfg_options`, `workers`, `work_dir` and `launcher`.
        data: takes the place of the config's data sets, evaluators and numbers of classes.

    Raises:
        ConfigError: if options contradict the data, or the config cannot take one of these.
        ValueError: for an unknown backbone or key.
    """
    cfg_options = options.cfg_options or {}
    backbone = options.backbone
    is_main_process = read_rank(options.launcher) == 0
    if backbone:
        cfg = swap_backbone(config, backbone, at=options.at, recipe=options.recipe or 'swin', verbose=is_main_process)
    else:
        cfg = copy.deepcopy(config)
    if 'type' in (cfg.get('train_cfg') or {}):
        cfg.train_cfg.pop('by_epoch', None)  # mmdet's solov2-light_* has it, and mmengine's loops refuse it
    if data is not None:
        put_data(cfg, data)
        for _, dataset in list_dataset_configs(cfg, 'train'):
            # Small pictures, and those without objects, are trained on. Here, not in `put_data`: --cfg-options may set
            # it again without contradicting --data
            dataset.pop('filter_cfg', None)
    if options.workers is not None:
        set_workers(cfg, options.workers)
    apply_options(cfg, cfg_options)
    if data is not None:
        _require_agreement(cfg, data, cfg_options)
    use_load_picture(cfg)
    name = Path(config.filename or 'config').stem + (f'_{backbone}' if backbone else '')
    cfg.work_dir = str(options.work_dir or cfg.get('work_dir') or Path('work_dirs', name))
    cfg.launcher = options.launcher
    if any(key.lstrip('+').startswith('custom_imports') for key in cfg_options):
        import_modules_from_strings(**cfg.custom_imports)  # mmengine imports only the modules in the file
    return cfg


def _require_agreement(cfg: Config, data: UserData, cfg_options: dict[str, Any]) -> None:
    """Raise ConfigError if `cfg_options` set a key that the data decide."""
    refilled = copy.deepcopy(cfg)
    put_data(refilled, data)
    for key in cfg_options:
        value, expected = get_setting(cfg, key), get_setting(refilled, key)
        if expected != value and repr(expected) != repr(value):  # NaN equals no number
            raise ConfigError(f'{key} follows from --data, which makes it {expected!r}, got {value!r}')


class ResolvedTraining(NamedTuple):
    """The result of `resolve_training`.

    Args:
        cfg: the config.
        datasets: the data sets of the config, of which some are built.
        changes: lines on what the options of the training change.
    """

    cfg: Config
    datasets: BuiltDatasets
    changes: list[str]


def resolve_training(config: Config, options: Options, data: Optional[UserData] = None) -> ResolvedTraining:
    """Return the training of a config, which stays unchanged. Data sets are read if the options need them.

    Args:
        config: the result of `combine`.
        options: settings of the training, `cfg_options`, `amp`, `weights`, `resume`, `vis` and `launcher`.
        data: the data of the user, if `config` has them.

    Raises:
        ConfigError: if options contradict each other, or the config cannot take one of these.
        DataError: for wrong data.
    """
    cfg: Config = copy.deepcopy(config)
    datasets = BuiltDatasets(cfg)
    changes: list[str] = []
    has_settings = any(getattr(options, name) != DEFAULTS[name] for name in TRAINING_SETTINGS.split())
    if data is not None or has_settings:
        if not list_dataset_configs(cfg, 'train'):
            raise ConfigError('the config has no data set in train_dataloader')
        if data is not None and 'test' in data.splits and data.splits['test'].is_alone:
            test_on_held_out(cfg, data)
        apply_settings(cfg, options)
        apply_options(cfg, options.cfg_options or {})
        use_load_picture(cfg)
        world_size = read_world_size(options.launcher)
        plan = _find_epoch_plan(datasets, options, data)
        if plan is not None:
            scaled_keys = apply_epoch_plan(cfg, options, data, plan, world_size)
            changes += [plan.line, *(f'{key} {SCALED_NOTE}' for key in scaled_keys)]
        if not options.auto_scale_lr and (options.batch is not None or data is not None):
            changes.append(describe_lr(cfg, world_size, options.lr is not None or LR in (options.cfg_options or {})))
        if changed := summarize(config, cfg):
            changes.append(f'changed settings:\n{changed}')
    if options.amp:
        enable_amp(cfg, options.amp)
    if options.weights is not None:
        set_initial_weights(cfg, options.weights)
    if options.resume is not None:
        cfg.update(resume=True, load_from=None if options.resume == 'auto' else options.resume)
    if options.vis:
        enable_vis(cfg, options.vis)
    return ResolvedTraining(cfg, datasets, changes)


def _find_epoch_plan(datasets: BuiltDatasets, options: Options, data: Optional[UserData]) -> Optional[EpochPlan]:
    """Return the plan of an epoch; None if no setting depends on it.

    The index of --data has the number of pictures. Where a setting selects or balances pictures, they are counted.
    """
    if options.epochs is None and not options.balance:
        if data is None:
            return None
        parts = [part for _, part in iter_parts(datasets.cfg.train_dataloader.dataset, 'dataset')]
        selects = any(part.get('indices') or part.get('filter_cfg') for part in parts)
        if not selects and 'ClassBalancedDataset' not in map(type_name, parts):
            # The wrappers are a chain around one data set: `put_data` leaves no other
            times = math.prod(part['times'] for part in parts if type_name(part) == 'RepeatDataset')
            return EpochPlan(data.splits['train'].num_pictures * times)
    return plan_epoch(datasets, options.balance)


def apply_epoch_plan(
    cfg: Config, options: Options, data: Optional[UserData], plan: EpochPlan, world_size: int = 1
) -> list[str]:
    """Scale the schedule of a training to its pictures, and balance its classes, in place.

    Without `data` and `options.epochs`, the schedule stays. Returns the keys of `cfg_options` that are scaled too.

    Args:
        cfg: with the other settings of the training.
        plan: see `plan_epoch`.

    Raises:
        ConfigError: if the config has no length, or weights of classes beside `balance`.
    """
    cfg_options = options.cfg_options or {}
    scaled_keys: list[str] = []
    if options.epochs is not None or data is not None:
        num_schedulers = len(cfg.get('param_scheduler') or ())
        scale_schedule(cfg, plan.num_pictures, world_size, options.epochs)
        if len(cfg.get('param_scheduler') or ()) != num_schedulers:
            scaled_keys = [key for key in cfg_options if key.lstrip('+').startswith('param_scheduler.')]
            cfg_options = {key: value for key, value in cfg_options.items() if key not in scaled_keys}
        apply_options(cfg, cfg_options)
    if options.balance:
        conflicts = [key for key in cfg_options if 'class_weight' in key] if plan.class_weights else []
        if conflicts:
            raise ConfigError(f'--balance and --cfg-options {conflicts[0]} are one setting: leave out one of them')
        apply_balance(cfg, plan)  # last, because keys of options refer to the wrapped data set
    return scaled_keys
