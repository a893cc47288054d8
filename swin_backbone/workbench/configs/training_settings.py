"""--epochs, --batch, --shape, --lr, --patience, --seed, --workers, and settings of a config that depend on these."""

import math
from dataclasses import dataclass, field
from typing import Any, Optional

from mmengine.config import Config, ConfigDict

from ...openmmlab.config_parts import iter_parts, type_name, walk
from ...openmmlab.errors import ConfigError
from ...options import Options
from .cfg_options import get_setting
from .data_parts import list_metric_configs

WARM_UP_SCHEDULERS = ('LinearLR', 'ConstantLR', 'QuadraticWarmupLR', 'LinearMomentum', 'QuadraticWarmupMomentum')
MAX_WARM_UP_RATIO = 0.1  # share of the iterations of a training
# Settings of transforms and preprocessors, in pixels: one side, or two
SIDES = ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'border', 'random_size_range', 'center_crop_size')
KEYS_OF_OPTION = {  # the keys of a config that an option sets
    'epochs': ('train_cfg.max_epochs', 'train_cfg.max_iters'),
    'batch': ('train_dataloader.batch_size',),
    'lr': ('optim_wrapper.optimizer.lr',),
    'seed': ('randomness', 'randomness.seed'),
    'workers': tuple(f'{phase}_dataloader.num_workers' for phase in ('train', 'val', 'test')),
    'work_dir': ('work_dir',),
    'amp': ('optim_wrapper.type',),
    'weights': ('load_from', 'resume'),
    'resume': ('load_from', 'resume'),
}
SIZE_DIVISOR = 32  # pixels: a side that is a multiple stays one


def refuse_keys_of_options(options: Options) -> None:
    """Raise ConfigError if `cfg_options` have a key that another option sets."""
    for name, keys in KEYS_OF_OPTION.items():
        conflicts = [key for key in options.cfg_options or () if key.removeprefix('+') in keys]
        if conflicts and getattr(options, name) is not None:
            raise ConfigError(
                f'--{name.replace("_", "-")} and --cfg-options {conflicts[0]} are one setting: leave out one of them'
            )


def apply_settings(cfg: Config, options: Options) -> None:
    """Put the settings of a training into a config, in place, and change all settings that depend on them.

    The schedule does not follow: see `scale_schedule` for `epochs`, and `describe_lr` for `batch`.

    Raises:
        ConfigError: if the config lacks what a setting changes, naming the key.
    """
    if options.batch is not None:
        if not isinstance(get_setting(cfg, 'train_dataloader.batch_size'), int):
            raise ConfigError('--batch sets train_dataloader.batch_size, and the config has none')
        cfg.train_dataloader.batch_size = options.batch
    if options.shape is not None:
        _set_img_scale(cfg, options.shape[::-1])
    if options.lr is not None:
        _set_lr(cfg, options.lr)
    if options.epochs is not None:
        for _, part in iter_parts(cfg.train_dataloader.get('dataset'), 'dataset'):
            if type_name(part) == 'RepeatDataset':
                part['times'] = 1  # an epoch has each picture once
    if options.seed is not None:
        cfg.randomness = {**(cfg.get('randomness') or {}), 'seed': options.seed}
    if options.patience is not None:
        _set_patience(cfg, options.patience)
    if options.auto_scale_lr:
        _enable_auto_scale_lr(cfg)


def set_workers(cfg: Config, num_workers: int) -> None:
    """Set the number of processes that load pictures, in place."""
    for phase in ('train', 'val', 'test'):
        loader: Any = cfg.get(f'{phase}_dataloader')
        if isinstance(loader, dict):
            loader['num_workers'] = num_workers
            if not num_workers:  # torch refuses these without workers
                loader['persistent_workers'] = False
                loader.pop('prefetch_factor', None)


# --- the end of a training that gets no better ------------------------------------------------------------------------

STOPPING = 'EarlyStoppingHook'  # mmengine's
LEAST_GAIN = 1e-4  # difference of a better metric
# The main metric by the evaluator's class; with the kind of objects, boxes before masks
MAIN_METRICS = dict(CocoMetric='coco/{}_mAP', VOCMetric='pascal_voc/mAP', IoUMetric='mIoU', Accuracy='accuracy/top1')


def _set_patience(cfg: Config, validations: int) -> None:
    """Let mmengine's EarlyStoppingHook end a training without a better metric. A hook of the config is changed."""
    hooks = list(cfg.get('custom_hooks') or [])
    for hook in hooks:
        if type_name(hook) == STOPPING:
            hook['patience'] = validations
            return
    cfg.custom_hooks = [*hooks, dict(type=STOPPING, patience=validations, min_delta=LEAST_GAIN, **_find_metric(cfg))]


def _find_metric(cfg: Config) -> dict[str, str]:
    """Return `monitor`: the metric of save_best, with its `rule` if there is one, or an evaluator's main metric."""
    checkpoint: Any = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    best, rule = (
        value[0] if isinstance(value, (list, tuple)) and value else value
        for value in (checkpoint.get('save_best'), checkpoint.get('rule'))
    )
    if isinstance(best, str) and best != 'auto':
        return dict(monitor=best, rule=rule) if rule else dict(monitor=best)
    for _, metric in list_metric_configs(cfg, 'val'):
        if type_name(metric) in MAIN_METRICS:
            kind = 'bbox' if 'bbox' in metric.get('metric', 'bbox') else 'segm'
            return dict(monitor=MAIN_METRICS[type_name(metric)].format(kind))
    raise ConfigError(
        '--patience watches a metric of the validation: name it by --cfg-options '
        '+default_hooks.checkpoint.save_best=NAME'
    )


# --- the learning rate ------------------------------------------------------------------------------------------------


# The rate does not follow the batch size: docs/measurements/training.md compares three rules
def describe_lr(cfg: Config, world_size: int = 1, is_set_by_user: bool = False) -> str:
    """Return a line with the learning rate; '' without a batch size, or one optimizer with a learning rate."""
    optimizer = _find_optimizer(cfg)
    batch_size = (cfg.get('train_dataloader') or {}).get('batch_size')
    if optimizer is None or not isinstance(batch_size, int):
        return ''
    num_pictures = batch_size * world_size * cfg.optim_wrapper.get('accumulative_counts', 1)
    base = get_setting(cfg, 'auto_scale_lr.base_batch_size')
    line = f'learning rate {optimizer.lr:g}, {num_pictures} pictures per step'
    if is_set_by_user or base in (None, num_pictures):
        return line
    return f'{line}; the config has it for {base} pictures: --auto-scale-lr scales it in proportion, --lr sets another'


def _enable_auto_scale_lr(cfg: Config) -> None:
    """Let mmengine scale the learning rate in proportion to the batch size: `--auto-scale-lr` of the toolboxes.

    mmengine ignores accumulated gradients, so the base is divided by their number.

    Raises:
        ConfigError: if the config does not name the batch size of its learning rate.
    """
    base = get_setting(cfg, 'auto_scale_lr.base_batch_size')
    if base is None:
        raise ConfigError('--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) in the config')
    cfg.auto_scale_lr.update(enable=True, base_batch_size=base / cfg.optim_wrapper.get('accumulative_counts', 1))


def _find_optimizer(cfg: Config) -> Optional[Any]:
    """Return the optimizer of a config, or None if it has several optimizers or no learning rate."""
    optimizer: Any = (cfg.get('optim_wrapper') or {}).get('optimizer')
    has_lr = isinstance(optimizer, dict) and isinstance(optimizer.get('lr'), (int, float)) and optimizer['lr']
    return optimizer if has_lr else None


def _set_lr(cfg: Config, lr: float) -> None:
    """Set the learning rate, and scale the other rates of the schedule in proportion."""
    optimizer = _find_optimizer(cfg)
    if optimizer is None:
        raise ConfigError('--lr sets optim_wrapper.optimizer.lr, and the config has none')
    for scheduler in _list_schedulers(cfg):
        for key in ('eta_min', 'eta_max'):
            if isinstance(scheduler.get(key), (int, float)) and 'Momentum' not in type_name(scheduler):
                scheduler[key] = float(f'{scheduler[key] * lr / optimizer.lr:.6g}')
    optimizer.lr = lr


def _list_schedulers(cfg: Config) -> list[ConfigDict]:
    schedulers = cfg.get('param_scheduler') or []
    return [schedulers] if isinstance(schedulers, dict) else list(schedulers)


# --- the length of a training -----------------------------------------------------------------------------------------


def scale_schedule(cfg: Config, num_pictures: int, world_size: int = 1, epochs: Optional[int] = None) -> None:
    """Set the length of a training, in place, and shorten warm-ups to a tenth of it at most.

    Args:
        num_pictures: number of pictures per epoch.
        epochs: None keeps the length.

    Raises:
        ConfigError: if train_cfg has neither max_epochs nor max_iters.
    """
    loop = cfg.get('train_cfg') or ConfigDict()
    by_epoch = 'max_epochs' in loop
    length_key = 'max_epochs' if by_epoch else 'max_iters'
    if not isinstance(loop.get(length_key), int):
        raise ConfigError('a schedule needs train_cfg.max_epochs or max_iters, and the config has neither')
    batch_size = cfg.train_dataloader.get('batch_size') or 1
    iters_per_epoch = max(1, math.ceil(num_pictures / (batch_size * world_size)))
    old = loop[length_key]
    new = old if epochs is None else epochs if by_epoch else epochs * iters_per_epoch
    factor = new / old
    loop[length_key] = new
    num_iters = new * iters_per_epoch if by_epoch else new
    length = _NewLength(factor, total=new, num_iters=num_iters, iters_per_epoch=iters_per_epoch, by_epoch=by_epoch)
    # In order: a warm-up moves the begin of those after it
    cfg.param_scheduler = [scaled for scaled in map(length.scale, _list_schedulers(cfg)) if scaled is not None]
    _scale_intervals(cfg, loop, length, 1 if by_epoch or epochs is None else iters_per_epoch)
    logger: Any = (cfg.get('default_hooks') or {}).get('logger')
    if isinstance(logger, dict):
        logger['interval'] = min(logger.get('interval', 10), iters_per_epoch if by_epoch else max(1, new // 10))
    if factor != 1:
        unit = 'epoch' if by_epoch else 'iter'
        _scale_switch_points([cfg.get('custom_hooks'), cfg.get('default_hooks')], unit, old, new)
        _scale_switch_points(cfg.get('model'), 'epoch', old, new)


@dataclass
class _NewLength:
    """The length of a training, to which its schedulers are scaled."""

    factor: float  # to the length in the config
    total: int  # in epochs or, without `by_epoch`, in iterations
    num_iters: int
    iters_per_epoch: int
    by_epoch: bool
    moved_ends: dict[int, int] = field(default_factory=dict)  # old and new ends of warm-ups, in iterations

    def scale(self, scheduler: ConfigDict) -> Optional[ConfigDict]:
        """Return a scheduler at its new place, or None for one without length."""
        scheduler = ConfigDict(scheduler)
        counts_epochs = scheduler.get('by_epoch', True)
        begin, end = scheduler.get('begin', 0), scheduler.get('end')
        rises = scheduler.get('start_factor', 0) < scheduler.get('end_factor', 1)
        if type_name(scheduler) in WARM_UP_SCHEDULERS and rises and not begin and isinstance(end, int):
            return self._scale_warm_up(scheduler, end, counts_epochs)
        limit = self.total if counts_epochs == self.by_epoch else self.num_iters
        factor = self.factor if counts_epochs == self.by_epoch else min(1.0, self.factor)
        if begin:
            moved_end = None if counts_epochs else self.moved_ends.get(begin)
            scheduler.begin = min(round(begin * factor), limit) if moved_end is None else moved_end
        if isinstance(end, int):
            scheduler.end = min(max(1, round(end * factor)), max(limit, 1))
            if scheduler.end <= scheduler.get('begin', 0):
                return None
        if 'T_max' in scheduler:
            spans_all = isinstance(end, int) and scheduler.T_max in (end - begin, end)
            T_max = scheduler.end - scheduler.get('begin', 0) if spans_all else round(scheduler.T_max * factor)
            scheduler.T_max = max(1, T_max)
        if 'milestones' in scheduler:
            scheduler.milestones = sorted({max(1, round(value * factor)) for value in scheduler.milestones})
        if 'periods' in scheduler:
            scheduler.periods = [max(1, round(value * factor)) for value in scheduler.periods]
        for key in ('step_size', 'total_steps'):
            if key in scheduler:
                scheduler[key] = max(1, round(scheduler[key] * factor))
        return scheduler

    def _scale_warm_up(self, scheduler: ConfigDict, end: int, counts_epochs: bool) -> Optional[ConfigDict]:
        """Return a warm-up of as many iterations as before, at most `MAX_WARM_UP_RATIO` of all; None without any."""
        longest = int(MAX_WARM_UP_RATIO * self.num_iters)
        if counts_epochs and self.factor == 1 and 1 < end * self.iters_per_epoch <= longest:
            return scheduler
        iters = min(round(end * self.factor * self.iters_per_epoch) if counts_epochs else end, longest)
        scheduler.end = iters if iters > 1 else 0  # mmengine keeps the first rate of 1 iteration to the end
        if not counts_epochs:
            self.moved_ends[end] = scheduler.end
        scheduler.by_epoch = False
        scheduler.pop('convert_to_iter_based', None)
        return scheduler if scheduler.end else None


def _scale_intervals(cfg: Config, loop: ConfigDict, length: _NewLength, multiple: int) -> None:
    """Shorten the intervals of validations and checkpoints with the training; in a longer one they stay.

    Args:
        multiple: 1, or for a training by iterations that --epochs sets, the iterations of an epoch: intervals become
            multiples of it.
    """

    def scale(interval: int) -> int:
        return min(max(1, round(min(interval, interval * length.factor) / multiple)) * multiple, length.total)

    if cfg.get('val_dataloader'):
        loop.val_interval = scale(loop.get('val_interval', 1 if length.by_epoch else 1000))  # mmengine's defaults
    if 'val_begin' in loop:
        loop.val_begin = max(1, round(loop.val_begin * length.factor))
    if loop.get('dynamic_intervals'):
        loop.dynamic_intervals = [(round(at * length.factor), scale(every)) for at, every in loop.dynamic_intervals]
    checkpoint: Any = (cfg.get('default_hooks') or {}).get('checkpoint')
    save_interval = checkpoint.get('interval') if isinstance(checkpoint, dict) else None
    if isinstance(save_interval, int) and save_interval > 0 and checkpoint.get('by_epoch', True) == length.by_epoch:
        checkpoint.interval = scale(save_interval)
        if 'save_begin' in checkpoint:
            checkpoint.save_begin = min(round(checkpoint.save_begin * length.factor), length.total)


def _scale_switch_points(node: Any, unit: str, old: int, new: int) -> None:
    """Scale the settings by which hooks and heads change their behaviour, as switch_epoch, num_last_epochs, begin_iter.

    A change within the old length stays within the new one.

    Args:
        unit: 'epoch' or 'iter'.
        old, new: lengths of the training.
    """
    for _, part in walk(node):
        for key, value in part.items() if isinstance(part, dict) else ():
            if str(key).endswith((unit, f'{unit}s')) and type(value) is int and value > 0:  # by_epoch is a bool
                part[key] = min(round(value * new / old), new - 1 if value < old else new)


# --- the size of pictures ---------------------------------------------------------------------------------------------


def _set_img_scale(cfg: Config, scale: tuple[int, int]) -> None:
    """Set the width and height of Resize in test, and scale all other sizes in pixels in proportion."""
    loaders = [cfg.get('test_dataloader'), cfg.get('val_dataloader'), cfg.get('train_dataloader')]
    tested = [part for _, part in iter_parts(loaders[:2]) if _is_resize(part)]
    if not tested:
        raise ConfigError('--shape sets the scale of Resize in test_dataloader, whose pipeline has none')
    old = sorted(_to_pair(tested[0]['scale']))
    factors = min(scale) / old[0], max(scale) / old[1]
    model = cfg.get('model') or {}
    others = [cfg.get(name) for name in ('data_preprocessor', 'custom_hooks', 'tta_pipeline')]
    for _, part in iter_parts([*loaders, *others, model.get('data_preprocessor')]):
        if _is_resize(part) and sorted(_to_pair(part['scale'])) == old:
            part['scale'] = scale
            continue
        for key in SIDES:
            if key in part:
                part[key] = _scale_sides(part[key], factors)
        if isinstance(part.get('max_size'), int):  # the longer side
            part['max_size'] = _scale_side(part['max_size'], factors[1])
    test_cfg = model.get('test_cfg')
    if isinstance(test_cfg, dict) and test_cfg.get('mode') == 'slide':
        for key in ('crop_size', 'stride'):
            test_cfg[key] = _scale_sides(test_cfg[key], factors)


def _is_resize(part: dict[str, Any]) -> bool:
    return 'type' in part and type_name(part).endswith('Resize') and isinstance(part.get('scale'), (list, tuple, int))


def _to_pair(scale: Any) -> tuple[int, int]:
    return (scale, scale) if isinstance(scale, int) else (scale[0], scale[1])


def _scale_sides(value: Any, factors: tuple[float, float]) -> Any:
    """Scale a side, a pair or a list of pairs by the factors of the short and the long side; a square by the first.

    All other values stay.
    """
    short_factor, long_factor = factors
    if isinstance(value, int) and not isinstance(value, bool):
        return _scale_side(value, short_factor)
    if not isinstance(value, (list, tuple)):
        return value
    cls: Any = type(value)
    if len(value) == 2 and all(isinstance(side, int) for side in value) and value[0] != value[1]:
        return cls(_scale_side(side, short_factor if side == min(value) else long_factor) for side in value)
    return cls(_scale_sides(pair, factors) for pair in value)


def _scale_side(side: int, factor: float) -> int:
    if side <= 0:  # the border of a mosaic is half of its side
        return side and -_scale_side(-2 * side, factor) // 2
    unit = SIZE_DIVISOR if side % SIZE_DIVISOR == 0 else 1
    return max(unit, round(side * factor / unit) * unit)
