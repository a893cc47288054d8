"""The initializers of `init_cfg`: checkpoints, and mmengine's for all other types."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..checks import refusal
from .arguments import InitCfg

InitCfgs = list[dict[str, Any]]


def split_init_cfg(init_cfg: InitCfg) -> tuple[InitCfgs, InitCfgs]:
    """Return the initializers of `init_cfg`, and its checkpoints, `dict(type='Pretrained', checkpoint=...)`.

    A config in pure Python may name mmengine's class `PretrainedInit`, and a name may have the prefix of a toolbox.
    """
    cfgs = [init_cfg] if isinstance(init_cfg, dict) else [*(init_cfg or ())]
    kinds = [getattr(cfg.get('type'), '__name__', str(cfg.get('type'))).rpartition('.')[2] for cfg in cfgs]
    checkpoints = [cfg for cfg, kind in zip(cfgs, kinds) if kind in ('Pretrained', 'PretrainedInit')]
    return [cfg for cfg in cfgs if cfg and cfg not in checkpoints], checkpoints


def apply_initializers(module: nn.Module, cfgs: Sequence[dict[str, Any]]) -> None:
    """Let mmengine's initializers write the parameters of a module.

    Raises:
        ImportError: if mmengine is not installed.
    """
    if not cfgs:
        return
    try:
        from mmengine.model import initialize
    except ImportError as error:
        allowed = "type 'Pretrained', and with mmengine installed the types of its initializers"
        raise ImportError(f'{refusal("init_cfg", allowed, cfgs[0])} ({error})') from error
    initialize(module, [*cfgs])
