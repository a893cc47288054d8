"""What tools/train.py and tools/test.py do around mmengine's Runner, for mmdet's configs and mmseg's alike."""

import atexit
import logging
import sys
from pathlib import Path
from typing import Optional

import torch
from mmengine.config import Config
from mmengine.device import is_cuda_available, is_musa_available, is_npu_available
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from .config_files import read_config
from .console import BriefRunner
from .loading import FitCheckpointHook, read_checkpoints_safely
from .own_data import fill_own_data
from .swap import swap_backbone


def load_config(
    path: str,
    work_dir: Optional[str],
    cfg_options: Optional[dict],
    launcher: str,
    backbone: Optional[str] = None,
    recipe: str = 'swin',
    with_data: bool = True,
) -> Config:
    """Read a config, a path or `mmdet::...`, and apply what the command line says: the options to what was swapped.

    The working folder is the command line's, else the config's, else work_dirs/ and the config's name.
    `with_data=False` leaves `own_data` alone: nothing is trained or tested, and the data need not be there.
    """
    cfg = read_config(path)
    name = Path(path.replace('::', '/')).stem
    if backbone:
        cfg = swap_backbone(cfg, backbone, recipe=recipe)
        name += f'_{backbone}'
    if cfg_options:
        cfg.merge_from_dict(cfg_options)
    if with_data:
        fill_own_data(cfg)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or str(Path('work_dirs') / name)
    return cfg


def build_runner(cfg: Config, unsafe_load: bool = False) -> Runner:
    """The runner a config asks for, ready for the machine it runs on, and for checkpoints of any origin.

    Args:
        unsafe_load: let what is pickled in a checkpoint execute whatever it wants.
    """
    read_checkpoints_safely(unless=unsafe_load)
    _do_without_a_broken_torchvision()
    if cfg.launcher == 'pytorch' and not _has_accelerator():
        _distribute_on_cpu(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else BriefRunner.from_cfg(cfg)
    runner.register_hook(FitCheckpointHook())
    return runner


def enable_amp(cfg: Config) -> None:
    """Turn on automatic mixed precision, as the toolboxes' `--amp` does.

    Raises:
        ValueError: if the config's optimizer wrapper is a kind of its own, or there is no accelerator.
    """
    if not _has_accelerator():
        raise ValueError("--amp: mmengine's AmpOptimWrapper needs an accelerator, and there is none on this machine")
    if cfg.optim_wrapper.type not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise ValueError(f'--amp takes an OptimWrapper, the config has optim_wrapper.type={cfg.optim_wrapper.type!r}')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')


def enable_auto_scale_lr(cfg: Config) -> None:
    """Scale the learning rate with the batch size, as the toolboxes' `--auto-scale-lr` does.

    Raises:
        ValueError: if the config does not say which batch size its learning rate is for.
    """
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise ValueError('--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) in the config')
    cfg.auto_scale_lr.enable = True


def set_resume(cfg: Config, resume: Optional[str]) -> None:
    """`--resume` alone goes on from the last checkpoint in the working folder, `--resume CKPT` from that one."""
    if resume is None:
        return
    if resume != 'auto' and not Path(resume).is_file():
        raise ValueError(f'--resume takes a checkpoint, got {resume!r}, which is no file')
    cfg.resume = True
    cfg.load_from = None if resume == 'auto' else resume


def set_checkpoint(cfg: Config, checkpoint: str) -> None:
    """Test the weights of `checkpoint`, a path or URL."""
    if '://' not in checkpoint and not Path(checkpoint).is_file():
        raise ValueError(f'the checkpoint {checkpoint!r} is no file')
    cfg.load_from = checkpoint


def enable_drawing(cfg: Config, show: bool, show_dir: Optional[str], wait_time: float) -> None:
    """Draw predictions on every tested picture: into a window, or into files in `show_dir`.

    Raises:
        ValueError: if the config has no visualization hook to do it.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise ValueError(
            "--show and --show-dir need default_hooks=dict(visualization=dict(type='DetVisualizationHook')), or "
            "'SegVisualizationHook', in the config"
        )
    hook.update(draw=True, interval=1)
    if show:
        hook.update(show=True, wait_time=wait_time)
    if show_dir:
        show_dir = str(Path(show_dir).absolute())  # mmdet's hook puts a relative one below a folder of its own
        if cfg.get('default_scope') == 'mmseg':
            cfg.visualizer.save_dir = show_dir
        else:
            hook.test_out_dir = show_dir


def enable_tta(cfg: Config) -> None:
    """Test with augmentation: the config's tta_model and tta_pipeline, or for a detector flipping.

    Raises:
        ValueError: for a segmentor whose config has no tta_model and tta_pipeline.
    """
    if 'tta_pipeline' not in cfg or 'tta_model' not in cfg:
        if cfg.get('default_scope') != 'mmdet':
            raise ValueError('--tta needs tta_model and tta_pipeline in the config')
        pack = dict(cfg.test_dataloader.dataset.pipeline[-1])
        pack['meta_keys'] = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction')
        flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
        augmentation = dict(type='TestTimeAug', transforms=[flips, [pack]])
        cfg.tta_pipeline = [*cfg.test_dataloader.dataset.pipeline[:-1], augmentation]
        nms = dict(type='nms', iou_threshold=0.5)
        cfg.tta_model = dict(type='DetTTAModel', tta_cfg=dict(nms=nms, max_per_img=100))
    cfg.model = dict(cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def write_predictions(cfg: Config, out: str) -> None:
    """Keep what a test predicts: of a detector as the pickle `out`, of a segmentor as label PNGs in the folder `out`.

    Raises:
        ValueError: if `out` is no name for that.
    """
    if cfg.get('default_scope') == 'mmseg':
        cfg.test_evaluator.update(output_dir=out, keep_results=True)
    elif not out.endswith(('.pkl', '.pickle')):
        raise ValueError(f'--out takes a name that ends in .pkl or .pickle for a detector, got {out!r}')
    else:
        cfg.test_evaluator = [cfg.test_evaluator, dict(type='DumpDetResults', out_file_path=out)]


def _do_without_a_broken_torchvision() -> None:
    """Have a torchvision that cannot be imported count as one that is not installed, and say so.

    Beside a torch that it was not built for it raises a RuntimeError, which mmengine, noting versions in the log, does
    not expect.
    """
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        pass
    except Exception as error:
        sys.modules['torchvision'] = None  # type: ignore[assignment]  # importing it is a ModuleNotFoundError now
        print_log(
            f'torchvision is left out: it cannot be imported ({error}), most likely since it was built for another '
            f'torch than the one here, {torch.__version__}. Exchange it or uninstall it; nothing here needs it',
            'current',
            logging.WARNING,
        )


def _distribute_on_cpu(cfg: Config) -> None:
    """Join the processes that torchrun started, over gloo; mmengine's own way wants a CUDA device for each."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
        # A process that ends with gloo's threads running may be aborted, after all work is done.
        atexit.register(torch.distributed.destroy_process_group)
    wrapper = cfg.get('model_wrapper_cfg') or dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    cfg.model_wrapper_cfg = dict(wrapper, device_ids=None)


def _has_accelerator() -> bool:
    return is_cuda_available() or is_npu_available() or is_musa_available()
