"""`--amp` in a config."""

from mmengine.config import Config

from ...openmmlab.compat import has_accelerator
from ...openmmlab.config_parts import type_name
from ...openmmlab.mixed_precision import Bfloat16OptimWrapper, MixedPrecisionHook, check_amp


def enable_amp(cfg: Config, dtype: str = 'auto') -> None:
    """Train in float16 as `--amp` of the toolboxes, with scaled losses, or in `mixed_precision` of bfloat16.

    Args:
        dtype: see `mixed_precision`.

    Raises:
        ValueError: if the config has another kind of optimizer wrapper, or for float16 on a CPU.
    """
    bfloat16_wrapper = Bfloat16OptimWrapper.__name__
    name = type_name({'type': 'OptimWrapper', **cfg.optim_wrapper})  # mmengine's default
    if name not in ('OptimWrapper', 'AmpOptimWrapper', bfloat16_wrapper):
        raise ValueError(f'--amp takes an OptimWrapper, the config has optim_wrapper.type={name!r}')
    if check_amp(dtype, 'cuda' if has_accelerator() else 'cpu') == 'float16':
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
        if dtype != 'auto':
            cfg.optim_wrapper.dtype = dtype
    else:
        cfg.optim_wrapper.type = bfloat16_wrapper
        for key in ('loss_scale', 'dtype', 'use_fsdp'):  # arguments of AmpOptimWrapper
            cfg.optim_wrapper.pop(key, None)


def enable_amp_of_test(cfg: Config, dtype: str = 'auto') -> None:
    """Test in `mixed_precision`."""
    check_amp(dtype, 'cuda' if has_accelerator() else 'cpu')
    cfg.test_cfg.fp16 = True  # without this, mmengine's loop turns autocast off in each step
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), dict(type=MixedPrecisionHook.__name__, dtype=dtype)]
