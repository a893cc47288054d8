"""The Runner of tools/train.py and tools/test.py: mmengine's Runner with guards for checkpoints and data."""

import logging
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Optional, Union

from mmengine.device import get_device
from mmengine.dist import get_rank
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook, EMAHook, Hook
from mmengine.logging import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import HOOKS, RUNNERS
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from ...acceleration import accelerate
from ...openmmlab.config_parts import find_class
from ...openmmlab.errors import ConfigError, TrainingStopped
from ...openmmlab.mixed_precision import MixedPrecisionHook
from ...whole_files import CANNOT_WRITE
from ..data.dataset_warnings import iter_dataset_warnings
from ..data.datasets import BuiltDatasets
from ..data.guard import DataGuardHook, guard_dataset
from ..resume.adapt_hook import AdaptCheckpointHook
from ..resume.checkpoint_hook import WholeCheckpointHook, describe_last_checkpoint, find_checkpoint_hook
from ..resume.latest import EPOCHS, find_newest_checkpoint
from ..resume.loops import RepeatValidationHook, make_resumable
from .hooks.curves import CurvesHook
from .hooks.estimate import EstimateHook
from .hooks.metric_names import MetricNamesHook
from .hooks.nan_guard import NonFiniteGuardHook
from .hooks.signals import SignalHook, StoppedBySignal, init_worker
from .hooks.validation import BroadcastBuffersHook, MaskAreasHook, PredictByShapeHook

# Beginnings of mmengine's longest messages, hundreds of lines before the first iteration
LONG_MESSAGES = (
    f'\n{"-" * 60}\nSystem environment:',
    'Config:\n',
    'Hooks will be executed in the following order:\n',
    'paramwise_options -- ',
)
# Beginnings of messages on mmengine's own code
INTERNAL_MESSAGES = (
    '"FileClient" will be deprecated',
    '"HardDiskBackend" is the alias',
    'Distributed training is not used, all SyncBatchNorm',
)
HOOKS_OF_MMENGINE = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
# The further hooks of every run. Those of equal priority run in this order: see the table in hooks/__init__.py
HOOK_CLASSES: tuple[type[Hook], ...] = (
    AdaptCheckpointHook,
    DataGuardHook,
    CurvesHook,
    EstimateHook,
    PredictByShapeHook,
    BroadcastBuffersHook,
    MaskAreasHook,
    MetricNamesHook,
    RepeatValidationHook,
)


class RunSettings(NamedTuple):
    """What a runner takes besides its config.

    Args:
        datasets: the data sets of the config, of which some may be built.
        skip_unreadable: continue without unreadable pictures: see `guard_dataset`.
        needs_all_weights: refuse a checkpoint without all weights of the model; for tests.
    """

    datasets: BuiltDatasets
    skip_unreadable: bool = False
    needs_all_weights: bool = False


class SafeRunner(Runner):
    """mmengine's Runner with loops, checkpoint hook, data loaders and guards of this package. Arguments: see mmengine.

    Environment, config, hooks and rates of parameters are only in the log file. log_level='DEBUG' prints them.

    Attributes:
        settings: set by `build_runner`, before train() and test() build the loaders.
        resumed_from: path of the resumed checkpoint; None for a new training.
    """

    settings: RunSettings
    built_phase = 'train'  # phase of the loop that is being built: 'train', 'val' or 'test'
    resumed_from: Optional[str] = None

    def register_default_hooks(self, hooks: Optional[dict[str, Union[Hook, dict[str, Any]]]] = None) -> None:
        # None turns off a default hook of mmengine; another one, like finite=None, would be registered
        hooks = {name: hook for name, hook in (hooks or {}).items() if hook is not None or name in HOOKS_OF_MMENGINE}
        hooks['signals'] = SignalHook()
        checkpoint = hooks.setdefault('checkpoint', dict(type='CheckpointHook', interval=1))
        if isinstance(checkpoint, dict) and find_class(checkpoint, HOOKS) is CheckpointHook:
            hooks['checkpoint'] = dict(checkpoint, type=WholeCheckpointHook)
        super().register_default_hooks(hooks)

    def register_hooks(self, default_hooks: Any = None, custom_hooks: Any = None) -> None:
        super().register_hooks(default_hooks, custom_hooks)
        is_watched = any(isinstance(hook, NonFiniteGuardHook) for hook in self.hooks)
        if not is_watched and (default_hooks or {}).get('finite', True) is not None:
            self.register_hook(NonFiniteGuardHook())
        for hook_class in HOOK_CLASSES:
            self.register_hook(hook_class())

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if isinstance(handler, logging.FileHandler):  # for file names that are not UTF-8
                handler.stream.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]
            elif logger.log_file and handler.level >= logging.INFO:
                handler.addFilter(lambda record: not record.getMessage().startswith(LONG_MESSAGES + INTERNAL_MESSAGES))
        if logger.log_file:
            hidden = 'environment, config, hooks, the rate of each parameter'
            logger.info(f"{hidden}: see {logger.log_file} (log_level='DEBUG' prints them here too)")
        return logger

    def wrap_model(self, model_wrapper_cfg: Optional[dict[str, Any]], model: nn.Module) -> nn.Module:
        """Accelerate the model first, because DistributedDataParallel fixes the strides of parameters.

        In processes without CUDA, BN takes the place of SyncBN, which computes only on GPUs.
        """
        sync_bn = None
        if get_device() == 'cpu':
            sync_bn = self.cfg.pop('sync_bn', None)
            has_sync_bn = sync_bn or any('SyncBatchNorm' in type(module).__name__ for module in model.modules())
            if self.distributed and has_sync_bn:
                model = revert_sync_batchnorm(model)
                self.logger.warning(
                    'SyncBN computes on GPUs alone: BN takes its place, with the statistics of each process'
                )
            accelerate(model)
        wrapped: nn.Module = super().wrap_model(model_wrapper_cfg, model)
        if sync_bn:
            self.cfg.sync_bn = sync_bn  # the saved config keeps the setting
        return wrapped

    def build_dataloader(  # a static method of mmengine's
        self, dataloader: Union[DataLoader[Any], dict[str, Any]], *args: Any, **kwargs: Any
    ) -> DataLoader[Any]:
        """Build a data loader that names wrong data in its errors.

        Raises:
            DataError: for wrong annotations, and if the data set cannot be built.
        """
        if isinstance(dataloader, dict):
            dataset = self.settings.datasets.build(self.built_phase, dataloader['dataset'])
            dataloader = {**dataloader, 'dataset': dict(type=lambda: dataset)}  # mmengine copies data, not functions
        loader: DataLoader[Any] = super().build_dataloader(dataloader, *args, **kwargs)
        is_training = self.built_phase == 'train'
        if get_rank() == 0:
            for sentence in iter_dataset_warnings(loader.dataset, self.settings.datasets.with_masks, is_training):
                self.logger.warning(sentence)
        guard_dataset(loader.dataset, self.cfg, is_training, self.settings.skip_unreadable)
        loader.worker_init_fn = partial(init_worker, loader.worker_init_fn)
        return loader

    def build_evaluator(self, evaluator: Any) -> Evaluator:
        """Build an evaluator. Raises: see `BuiltDatasets.check_evaluator`."""
        self.settings.datasets.check_evaluator(evaluator)
        return super().build_evaluator(evaluator)

    def build_train_loop(self, loop: Union[BaseLoop, dict[str, Any]]) -> BaseLoop:
        self.built_phase = 'train'
        return super().build_train_loop(make_resumable(loop) if isinstance(loop, dict) else loop)

    def build_val_loop(self, loop: Union[BaseLoop, dict[str, Any]]) -> BaseLoop:
        self.built_phase = 'val'
        return super().build_val_loop(loop)

    def build_test_loop(self, loop: Union[BaseLoop, dict[str, Any]]) -> BaseLoop:
        self.built_phase = 'test'
        return super().build_test_loop(loop)

    def load_or_resume(self) -> None:
        if self._has_loaded or not self._resume or self._load_from is not None:
            super().load_or_resume()
            return
        hook = find_checkpoint_hook(self)
        folder = hook.find_folder(self) if hook is not None else self.work_dir
        path = find_newest_checkpoint(self.work_dir, folder, hook.filename_tmpl if hook is not None else EPOCHS)
        if path is None:
            self.logger.warning(f'There is no checkpoint in {folder} to resume: training starts from the beginning.')
        else:
            self.resume(path)

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Continue from a checkpoint.

        mmengine reads the file and calls `AdaptCheckpointHook.after_load_checkpoint` (resume/adapt_hook.py), which
        adapts the weights and restores the position. mmengine then loads the weights, epoch and iteration.

        Raises:
            CheckpointError: if the checkpoint does not fit. The run stays unchanged.
        """
        self._resume = True
        self.resumed_from = filename
        super().resume(filename, *args, **kwargs)
        hook = find_checkpoint_hook(self)
        if hook is not None:
            hook.saved_iter = self.iter
            hook.saved_path = filename

    @property
    def last_checkpoint(self) -> Optional[str]:
        """The last saved or resumed checkpoint; None without one."""
        return getattr(find_checkpoint_hook(self), 'saved_path', None)

    def test(self) -> dict[str, float]:
        """Test, as mmengine. Mixed precision and a replaced step end with the test, also after an error."""
        try:
            metrics: dict[str, float] = super().test()
            return metrics
        finally:
            self._close_hooks()

    def train(self) -> nn.Module:
        """Train, as mmengine.

        Raises:
            TrainingStopped: on a full disk, by a signal, or after too many losses that are not finite.
        """
        try:
            trained: nn.Module = super().train()
            return trained
        except StoppedBySignal:  # the checkpoint is saved
            raise
        except Exception as error:
            hook = find_checkpoint_hook(self)
            if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
                raise TrainingStopped(
                    f'training stops, because of {error.filename or self.work_dir} ({error.strerror}). '
                    f'{describe_last_checkpoint(hook)}'
                ) from error
            if hook is not None and self._can_save():
                with suppress(Exception):  # the save may fail by the same cause, as a broken device
                    hook.save_now(self, self.iter)
                    self.logger.info(describe_last_checkpoint(hook))
            raise
        finally:
            self._close_hooks()

    def _close_hooks(self) -> None:
        for hook in self.hooks:
            if isinstance(hook, (MixedPrecisionHook, PredictByShapeHook, SignalHook)):
                hook.close()

    def _can_save(self) -> bool:
        """Return whether the model is between two steps and has no averaged weights, in the only process."""
        has_averages = any(isinstance(hook, EMAHook) for hook in self.hooks)  # validation runs on them
        is_between_steps = getattr(self._train_loop, 'is_between_steps', False)  # no attribute of a foreign loop
        return is_between_steps and self.iter > 0 and self.world_size == 1 and (self.model.training or not has_averages)


def make_runner_class(name: str) -> type[SafeRunner]:
    """Return SafeRunner, or a class of SafeRunner and a config's own `runner_type`.

    Raises:
        ConfigError: if the class is no subclass of mmengine's Runner.
    """
    own = RUNNERS.get(name)
    if not isinstance(own, type) or not issubclass(own, Runner):
        raise ConfigError(f"runner_type takes a subclass of mmengine's Runner, got {name!r}")
    return SafeRunner if own is Runner else type(f'Safe{own.__name__}', (SafeRunner, own), {})
