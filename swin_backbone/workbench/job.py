"""Train and test with mmengine's Runner, by configs of all toolboxes."""

import copy
from pathlib import Path
from typing import Any, Optional, Union

from mmengine.config import Config
from mmengine.utils import import_modules_from_strings

from ..openmmlab.config_files import read_config
from ..openmmlab.errors import ConfigError, kind_of
from ..openmmlab.layers.accelerate import accelerate
from ..openmmlab.mixed_precision import Bfloat16OptimWrapper, MixedPrecisionHook, check_amp
from ..openmmlab.swap.diff import summarize
from ..openmmlab.swap.replace import swap_backbone
from .configs.cfg_options import apply_options, setting_of
from .configs.paths import datasets_in, require_data
from .configs.published import start_from_weights
from .configs.training_settings import TrainingSettings, apply_settings, enable_auto_scale_lr, fit_schedule, lr_line
from .data.check_data import check_own_data
from .data.guard import count_pictures
from .data.own_data.config import fill_own_data
from .data.own_data.layouts import find_data
from .predict.predictor import Predictor
from .runner import build
from .runner.build import has_accelerator
from .runner.launchers import processes, rank
from .runner.safe_runner import SafeRunner


def load_config(
    path: str,
    work_dir: Optional[str],
    cfg_options: Optional[dict[str, Any]],
    launcher: str,
    backbone: Optional[str] = None,
    recipe: str = 'swin',
    with_data: bool = True,
    at: Optional[str] = None,
    data: Optional[Union[str, Path]] = None,
    annotations: Optional[Union[str, Path]] = None,
    settings: Optional[TrainingSettings] = None,
) -> Config:
    """Read a config and apply the command line: backbone, data, options, then the settings that depend on these.

    Args:
        path: a file, or `mmdet::...`.
        work_dir: default: the config's folder, or work_dirs/ and the config's name.
        with_data: False skips `own_data`, and needs no data.
        data: pictures of the user with annotations, in place of the config's; see `find_data`.
        annotations: file or folder of the annotations, if they are not below `data`.
        settings: settings of a training; None for other tools.
    """
    cfg = read_config(path)
    if 'type' in (cfg.get('train_cfg') or {}):
        cfg.train_cfg.pop('by_epoch', None)  # mmdet's solov2-light_* has it, and mmengine's loops refuse it
    name = Path(path.replace('::', '/')).stem
    if at and not backbone:
        raise ValueError(f'--at {at} needs --backbone, which is missing')
    if backbone:
        cfg = swap_backbone(cfg, backbone, at=at, recipe=recipe)
        name += f'_{backbone}'
    options = cfg_options or {}
    folder = work_dir or options.get('work_dir') or options.get('+work_dir')
    cfg.work_dir = folder or cfg.get('work_dir') or str(Path('work_dirs') / name)
    if data is not None:
        names = options.get('own_data.classes') or options.get('+own_data.classes')
        names = names if isinstance(names, (list, tuple)) else None
        own = find_data(cfg, data, annotations, Path(cfg.work_dir) / 'data', names)
        cfg.own_data = own.own_data
        fill_own_data(cfg)
        for _, dataset in datasets_in(cfg, 'train'):  # small pictures, and those without objects, are trained on
            dataset.pop('filter_cfg', None)
        if not rank(launcher):
            print('\n'.join(own.lines), flush=True)
    elif annotations is not None:
        raise ValueError(f'--annotations {annotations} needs --data, which is missing')
    apply_options(cfg, options)
    if any(key.lstrip('+').startswith('custom_imports') for key in options):
        import_modules_from_strings(**cfg.custom_imports)  # mmengine imports only the modules in the file
    if with_data:
        given = {key: setting_of(cfg, key) for key in options}
        fill_own_data(cfg)
        for key, value in given.items():
            filled = setting_of(cfg, key)
            if not isinstance(value, dict) and filled != value and repr(filled) != repr(value):  # NaN equals no number
                raise ConfigError(f'{key} follows from own_data, which makes it {filled!r}, got {value!r}')
    if settings is not None and (settings != TrainingSettings() or data is not None):
        _put_settings(cfg, settings, options, launcher, data is not None)
    cfg.work_dir = folder or cfg.work_dir
    cfg.launcher = launcher
    return cfg


def _put_settings(
    cfg: Config, settings: TrainingSettings, options: dict[str, Any], launcher: str, has_own_data: bool
) -> None:
    """Put settings into a config with its options, in place, and print the changes. An option overrides a setting."""
    before, lines = copy.deepcopy(cfg), []

    def pictures() -> int:
        apply_options(cfg, options)
        trained_on = copy.deepcopy(cfg)
        fill_own_data(trained_on)
        return count_pictures(trained_on)

    apply_settings(cfg, settings, pictures, processes(launcher))
    if settings.epochs is None and 'own_data' in cfg:
        fit_schedule(cfg, pictures(), processes(launcher))
    if len(cfg.get('param_scheduler') or ()) != len(before.get('param_scheduler') or ()):  # indices have moved
        options = {key: value for key, value in options.items() if not key.startswith('param_scheduler.')}
    apply_options(cfg, options)
    if settings.auto_scale_lr:
        enable_auto_scale_lr(cfg)
    elif settings.batch is not None or has_own_data:
        lines.append(lr_line(cfg, processes(launcher)))
    changes = summarize(before, cfg)
    if changes:
        lines.append(f'changed settings:\n{changes}')
    if not rank(launcher):
        print(*filter(None, lines), sep='\n', end='\n' if any(lines) else '', flush=True)


def build_training(
    cfg: Config,
    weights: Optional[str] = None,
    resume: Optional[str] = None,
    unsafe_load: bool = False,
    skip_unreadable: bool = False,
) -> SafeRunner:
    """Return the runner of a training, after a check of the data.

    Args:
        weights: path, URL or published name of the first weights of the whole model.
        resume: checkpoint to continue from, or 'auto' for the last one in the working folder; excludes `weights`.
        unsafe_load, skip_unreadable: see `build_runner`.

    Raises:
        ValueError: for an error in the config or the data.
    """
    if weights is not None:
        start_from_weights(cfg, weights)
    if resume is not None:
        cfg.update(resume=True, load_from=None if resume == 'auto' else resume)
    require_data(cfg, ('train', 'val'))
    if not rank(cfg.launcher):
        check_own_data(cfg, skip_unreadable)
    return build_runner(cfg, unsafe_load, skip_unreadable=skip_unreadable)


def build_runner(cfg: Config, *args: Any, **kwargs: Any) -> SafeRunner:
    """Return the runner of a config, whose model is accelerated on CPUs. Arguments: see `build.build_runner`."""
    return build.build_runner(cfg, *args, **dict(kwargs, accelerate=accelerate))


def open_predictor(cfg: Config, *args: Any, **kwargs: Any) -> Predictor:
    """Return the predictor of a config, whose model is accelerated on a CPU. Arguments: see `Predictor`."""
    return Predictor(cfg, *args, **dict(kwargs, accelerate=accelerate))


def enable_amp(cfg: Config, dtype: str = 'auto') -> None:
    """Train in float16 as `--amp` of the toolboxes, with scaled losses, or in `mixed_precision` of bfloat16.

    Args:
        dtype: see `mixed_precision`.

    Raises:
        ValueError: if the config has another kind of optimizer wrapper, or for float16 on a CPU.
    """
    of_bfloat16 = Bfloat16OptimWrapper.__name__
    if cfg.optim_wrapper.type not in ('OptimWrapper', 'AmpOptimWrapper', 'CpuAmpOptimWrapper', of_bfloat16):
        raise ValueError(f'--amp takes an OptimWrapper, the config has optim_wrapper.type={cfg.optim_wrapper.type!r}')
    if check_amp(dtype, 'cuda' if has_accelerator() else 'cpu') == 'float16':
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
        if dtype != 'auto':
            cfg.optim_wrapper.dtype = dtype
    else:
        cfg.optim_wrapper.type = of_bfloat16
        for name in ('loss_scale', 'dtype', 'use_fsdp'):  # arguments of AmpOptimWrapper
            cfg.optim_wrapper.pop(name, None)


def enable_amp_of_test(cfg: Config, dtype: str = 'auto') -> None:
    """Test in `mixed_precision`."""
    check_amp(dtype, 'cuda' if has_accelerator() else 'cpu')
    cfg.test_cfg.fp16 = True  # without this, mmengine's loop turns autocast off in each step
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), dict(type=MixedPrecisionHook.__name__, dtype=dtype)]


def enable_drawing(cfg: Config, show: bool, show_dir: Optional[str], wait_time: float) -> None:
    """Draw predictions on every tested picture, in a window or into `show_dir`.

    Raises:
        ValueError: if the config has no visualization hook.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    scope = cfg.get('default_scope')
    if hook is None:
        raise ValueError(
            "--show and --show-dir need default_hooks=dict(visualization=dict(type='DetVisualizationHook')), "
            "'SegVisualizationHook' or, of mmpretrain, 'VisualizationHook', in the config"
        )
    hook.update({'enable' if scope == 'mmpretrain' else 'draw': True, 'interval': 1})
    if show:
        hook.update(show=True, wait_time=wait_time)
    if show_dir:
        show_dir = str(Path(show_dir).absolute())  # mmdet's hook puts relative paths below the working folder
        if scope == 'mmseg':
            cfg.visualizer.save_dir = show_dir
        elif scope == 'mmpretrain':
            hook.out_dir = show_dir
        else:
            hook.test_out_dir = show_dir


def enable_tta(cfg: Config) -> None:
    """Test with the config's tta_model and tta_pipeline. Without these, a detector or classifier sees flipped pictures.

    `MaskTTAModel` replaces mmdet's DetTTAModel, which stops at masks.

    Raises:
        ValueError: for a segmentor without tta_model and tta_pipeline.
    """
    scope = cfg.get('default_scope')
    if 'tta_pipeline' not in cfg or 'tta_model' not in cfg:
        if scope not in ('mmdet', 'mmpretrain'):
            raise ValueError('--tta needs tta_model and tta_pipeline in the config')
        pack = dict(cfg.test_dataloader.dataset.pipeline[-1])
        if scope == 'mmdet':
            pack['meta_keys'] = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
            pack['meta_keys'] += ('flip', 'flip_direction')
        flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
        augmentation = dict(type='TestTimeAug', transforms=[flips, [pack]])
        cfg.tta_pipeline = [*cfg.test_dataloader.dataset.pipeline[:-1], augmentation]
        nms = dict(type='nms', iou_threshold=0.5)
        cfg.tta_model = (
            dict(type='DetTTAModel', tta_cfg=dict(nms=nms, max_per_img=100))
            if scope == 'mmdet'
            else dict(type='AverageClsScoreTTA')
        )
    if kind_of(cfg.tta_model) == 'DetTTAModel':
        from .runner.tta import MaskTTAModel  # imports mmdet

        cfg.tta_model.type = MaskTTAModel.__name__
    cfg.model = dict(cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def write_predictions(cfg: Config, out: str) -> None:
    """Write the predictions of a test to the pickle `out`. mmengine refuses other names than .pkl and .pickle."""
    dump = 'DumpResults' if cfg.get('default_scope') == 'mmpretrain' else 'mmdet.DumpDetResults'
    cfg.test_evaluator = [cfg.test_evaluator, dict(type=dump, out_file_path=out)]
