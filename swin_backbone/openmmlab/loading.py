"""Checkpoints through mmengine's Runner: read without executing anything, and fitted to the model."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import CheckpointLoader

from ..checkpoints import read_checkpoint, trust_checkpoints
from ..checkpoints.fit import backbones_of, fit
from ..checkpoints.safe import are_checkpoints_trusted, safe_globals
from ..compat import checkpoint_loaders

WEIGHTS_ONLY = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'  # torch.load obeys it, whatever its arguments say


def read_checkpoints_safely(unless: bool = False) -> None:
    """Have everything in this process that goes through mmengine read checkpoints as `load_checkpoint` does.

    That is the Runner's `resume` and `load_from`, and `init_cfg=dict(type='Pretrained')` of any module. mmengine's own
    loaders of files and addresses are replaced, by its registry of them. The OneDL release of mmengine falls back to
    unsafe loading when safe loading fails; its loaders of other schemes ('open-mmlab://', 's3://', ...) stay, and for
    as long as one runs torch is told to load nothing but weights; where they cannot be told apart, for good.

    Args:
        unless: load unsafely: the tools' --unsafe-load.
    """
    trust_checkpoints(unless)
    own = ('', 'file://', 'http://', 'https://')
    CheckpointLoader.register_scheme(own, load_from_file_or_address, force=True)
    loaders = checkpoint_loaders()
    if loaders is None and not unless:
        os.environ[WEIGHTS_ONLY] = '1'
    for prefix, loader in (loaders or {}).items():
        if prefix not in own and not hasattr(loader, '__wrapped__'):
            CheckpointLoader.register_scheme(prefix, _weights_only(loader), force=True)


def load_from_file_or_address(filename: str, map_location: Any = None) -> Any:
    """A loader for mmengine, which calls it by what comes after `load_from_`."""
    return read_checkpoint(filename, map_location)


class FitCheckpointHook(Hook):
    """Before the Runner loads a checkpoint: bring it to the names and shapes of a model with a `SwinBackbone`.

    With it `load_from` and `resume` take whatever `load_checkpoint` does, and say the same about it. It comes before
    EMAHook, which makes a copy.
    """

    priority = 'VERY_HIGH'

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        if not backbones_of(model):
            return
        fitted, report = fit(model, checkpoint, runner._load_from or f'of {runner.work_dir}')
        checkpoint['state_dict'] = fitted
        report.log()


def _weights_only(loader: Callable) -> Callable:
    @wraps(loader)
    def load(*args, **kwargs):
        with _torch_loads_weights_only():
            return loader(*args, **kwargs)

    return load


@contextmanager
def _torch_loads_weights_only() -> Iterator[None]:
    """For as long as this lasts `torch.load` is safe, also where it is called with weights_only=False."""
    before = os.environ.get(WEIGHTS_ONLY)
    if not are_checkpoints_trusted():
        os.environ[WEIGHTS_ONLY] = '1'
    try:
        with safe_globals():
            yield
    finally:
        os.environ.pop(WEIGHTS_ONLY, None)
        if before is not None:
            os.environ[WEIGHTS_ONLY] = before
