"""Train and test with mmengine's Runner, by configs of all toolboxes."""

import atexit
import copy
import time
from pathlib import Path
from typing import Any, Literal, Optional, Union

import torch
from mmengine.config import Config
from mmengine.device import is_cuda_available, is_musa_available, is_npu_available
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from ..checkpoints import CheckpointError
from ..devices import keep_freed_memory
from ..outputs import mark_folder
from .checkpointing.loading import read_checkpoints_safely
from .config.cfg_options import apply_options, setting_of
from .config.check import check_classes
from .config.files import read_config
from .config.paths import datasets_in, require_data
from .config.published import start_from_weights
from .config.training_settings import TrainingSettings, apply_settings, enable_auto_scale_lr, fit_schedule, lr_line
from .data.check_data import check_own_data
from .data.guard import count_pictures
from .data.own_data.config import fill_own_data
from .data.own_data.layouts import find_data
from .errors import ConfigError, DataError, TrainingStopped, kind_of, sentence_of
from .inference.by_shape import predict_by_shape
from .inference.results import MaskAreasHook
from .launchers import is_lost_peer, name_ranks_of_slurm, processes, rank
from .optim.amp import Bfloat16OptimWrapper, MixedPrecisionHook, check_amp
from .swap.diff import summarize
from .swap.replace import swap_backbone
from .training.buffers import SameBuffersHook
from .training.runner import SafeRunner, runner_class

LEAD_S = 2  # seconds before the remaining processes end, so that a launcher reports the lost process first
RUN_ERRORS = (ConfigError, CheckpointError, DataError, TrainingStopped)  # errors of `run` without a traceback


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
    check_own_data(cfg, skip_unreadable)
    return build_runner(cfg, unsafe_load, skip_unreadable=skip_unreadable)


def build_runner(
    cfg: Config, unsafe_load: bool = False, whole: bool = False, skip_unreadable: bool = False
) -> SafeRunner:
    """Return the runner of a config, with guards for checkpoints and data.

    Args:
        unsafe_load: let pickles in checkpoints run code.
        whole: refuse a checkpoint without all weights of the model; for tests.
        skip_unreadable: continue without unreadable pictures: see `guard_dataset`.
    """
    check_classes(cfg)
    read_checkpoints_safely(unless=unsafe_load)
    if cfg.launcher in ('pytorch', 'slurm') and not _has_accelerator():
        _distribute_on_cpu(cfg)
    runner: SafeRunner = runner_class(cfg.get('runner_type', 'Runner')).from_cfg(cfg)
    runner.needs_all_weights, runner.skip_unreadable = whole, skip_unreadable
    mark_folder(runner.log_dir)
    if not _has_accelerator():
        keep_freed_memory()
    predict_by_shape(runner.model)
    runner.register_hook(SameBuffersHook())
    runner.register_hook(MaskAreasHook())
    return runner


def run(runner: Runner, what: Literal['train', 'test']) -> Any:
    """Train or test.

    Returns:
        The model, or the metrics.

    Raises:
        ConfigError: for an error in the first step of training, in the first validation or in the test.
        DataError, CheckpointError: for a bad file.
        TrainingStopped: if a process of the run is lost, and for further reasons.
    """
    proven = ProvenHook()
    runner.register_hook(proven, priority='VERY_LOW')
    try:
        return runner.train() if what == 'train' else runner.test()
    except Exception as error:
        if runner.distributed and is_lost_peer(error):
            time.sleep(LEAD_S)
            raise TrainingStopped(
                f'rank {runner.rank} stops, because another process of the run is gone ({sentence_of(error)}); '
                '--resume goes on from the last checkpoint'
            ) from error
        if proven.phase in proven.phases or isinstance(error, RUN_ERRORS):
            raise
        raise ConfigError(sentence_of(error)) from error


class ProvenHook(Hook):
    """Record the phases that worked once: a training step, a validation with metrics."""

    phase = 'build'

    def __init__(self) -> None:
        self.phases: set[str] = set()

    def before_train(self, runner: Runner) -> None:
        self.phase = 'train'

    def after_train_iter(self, *_: Any, **__: Any) -> None:
        self.phases.add('train')

    def before_val(self, runner: Runner) -> None:
        self.phase = 'val'

    def after_val(self, runner: Runner) -> None:
        self.phases.add('val')
        self.phase = 'train'


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
    if check_amp(dtype, 'cuda' if _has_accelerator() else 'cpu') == 'float16':
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
    check_amp(dtype, 'cuda' if _has_accelerator() else 'cpu')
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
        from .inference.tta import MaskTTAModel  # imports mmdet

        cfg.tta_model.type = MaskTTAModel.__name__
    cfg.model = dict(cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def write_predictions(cfg: Config, out: str) -> None:
    """Write the predictions of a test to the pickle `out`. mmengine refuses other names than .pkl and .pickle."""
    dump = 'DumpResults' if cfg.get('default_scope') == 'mmpretrain' else 'mmdet.DumpDetResults'
    cfg.test_evaluator = [cfg.test_evaluator, dict(type=dump, out_file_path=out)]


def _distribute_on_cpu(cfg: Config) -> None:
    """Join the processes of torchrun or srun over gloo. mmengine itself needs a CUDA device for each process."""
    if not torch.distributed.is_initialized():
        if cfg.launcher == 'slurm':
            name_ranks_of_slurm()
        torch.distributed.init_process_group('gloo')
        # A process that exits with running threads of gloo may abort.
        atexit.register(torch.distributed.destroy_process_group)
    wrapper = cfg.get('model_wrapper_cfg') or dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    cfg.model_wrapper_cfg = dict(wrapper, device_ids=None)


def _has_accelerator() -> bool:
    has_one: bool = is_cuda_available() or is_npu_available() or is_musa_available()
    return has_one
