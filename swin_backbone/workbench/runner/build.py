"""Build the runner of a config, and run it."""

import atexit
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Optional

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ...checkpoints.errors import CheckpointError
from ...checks import DataError
from ...devices import keep_freed_memory
from ...openmmlab.compat import has_accelerator
from ...openmmlab.errors import ConfigError, TrainingStopped, describe_error
from ...options import Options
from ...outputs import mark_folder
from ..configs.class_counts import require_class_counts
from ..data.datasets import BuiltDatasets
from ..weights.loading import install_checkpoint_loaders
from .compile import compile_model
from .launchers import is_lost_peer, set_ranks_from_slurm
from .safe_runner import RunSettings, SafeRunner, make_runner_class

LEAD_S = 2  # seconds by which a lost process ends first: launchers blame the first
# Errors of `run_loop` without a traceback
RUN_ERRORS = (ConfigError, CheckpointError, DataError, TrainingStopped)


def build_runner(
    cfg: Config,
    options: Options,
    hooks: Sequence[Hook] = (),
    needs_all_weights: bool = False,
    datasets: Optional[BuiltDatasets] = None,
) -> SafeRunner:
    """Return the runner of a config, with guards for checkpoints and data.

    Args:
        options: `unsafe_load`, `skip_unreadable` and `compile`.
        hooks: further hooks, besides those of the config.
        needs_all_weights: see `RunSettings`.
        datasets: the data sets of the config, of which some are built; None builds all.
    """
    require_class_counts(cfg)
    install_checkpoint_loaders(options.unsafe_load)
    if cfg.launcher in ('pytorch', 'slurm') and not has_accelerator():
        _distribute_on_cpu(cfg)
    with _explain_lost_peers():
        runner: SafeRunner = make_runner_class(cfg.get('runner_type', 'Runner')).from_cfg(cfg)
    runner.settings = RunSettings(datasets or BuiltDatasets(cfg), options.skip_unreadable, needs_all_weights)
    for hook in hooks:
        runner.register_hook(hook)
    if options.compile:
        compile_model(runner.model)
    mark_folder(runner.log_dir)
    if not has_accelerator():
        keep_freed_memory()
    return runner


def run_loop(runner: Runner, phase: Literal['train', 'test']) -> Any:
    """Train or test.

    Returns:
        The model, or the metrics.

    Raises:
        ConfigError: for an error in the first step of training, in the first validation or in the test.
        DataError, CheckpointError: for a bad file.
        TrainingStopped: if a process of the run is lost, and for further reasons.
    """
    progress = ProgressHook()
    runner.register_hook(progress, priority='VERY_LOW')
    try:
        with _explain_lost_peers('; --resume goes on from the last checkpoint' if phase == 'train' else ''):
            return runner.train() if phase == 'train' else runner.test()
    except Exception as error:
        if progress.phase in progress.worked or isinstance(error, RUN_ERRORS):
            raise
        raise ConfigError(describe_error(error)) from error


@contextmanager
def _explain_lost_peers(hint: str = '') -> Iterator[None]:
    """Raise TrainingStopped, ending in `hint`, in place of the error of a collective whose other process is gone."""
    try:
        yield
    except Exception as error:
        if not (torch.distributed.is_initialized() and is_lost_peer(error)):
            raise
        time.sleep(LEAD_S)
        raise TrainingStopped(
            f'rank {torch.distributed.get_rank()} stops, because another process of the run is gone '
            f'({describe_error(error)}){hint}'
        ) from error


class ProgressHook(Hook):
    """Record what runs, and which phases have worked once: a training step, a validation with metrics.

    Until a phase has worked once, its errors are those of the config or the data; in a test, all are. A later one is a
    bug, here or in a library, and keeps its type and traceback.
    """

    phase = 'build'  # stays so in a test
    worked: frozenset[str] = frozenset()

    def before_train(self, runner: Runner) -> None:
        self.phase = 'train'

    def after_train_iter(self, *_: Any, **__: Any) -> None:
        self.worked |= {'train'}

    def before_val(self, runner: Runner) -> None:
        self.phase = 'val'

    def after_val(self, runner: Runner) -> None:
        self.worked |= {'val'}
        self.phase = 'train'


def _distribute_on_cpu(cfg: Config) -> None:
    """Join the processes of torchrun or srun over gloo. mmengine itself needs a CUDA device for each process."""
    if not torch.distributed.is_initialized():
        if cfg.launcher == 'slurm':
            set_ranks_from_slurm()
        torch.distributed.init_process_group('gloo')
        # A process that exits with running threads of gloo may abort.
        atexit.register(torch.distributed.destroy_process_group)
    wrapper = cfg.get('model_wrapper_cfg') or dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    cfg.model_wrapper_cfg = dict(wrapper, device_ids=None)
