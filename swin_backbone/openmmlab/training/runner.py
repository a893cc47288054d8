"""The Runner of tools/train.py and tools/test.py: mmengine's Runner with safe checkpoints and exact resume."""

import io
import logging
from functools import partial
from typing import Any, NoReturn, Optional, Union

from mmengine.device import get_device
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from ...whole_files import CANNOT_WRITE
from ..checkpointing.checkpoint_hook import WholeCheckpointHook, find_checkpoint_hook, name_of_last
from ..checkpointing.latest import EPOCHS, newest_whole_checkpoint
from ..checkpointing.loops import placed
from ..errors import TrainingStopped
from ..layers.accelerate import accelerate
from .signals import SignalHook, init_worker

# Beginnings of mmengine's longest records, hundreds of lines before the first iteration
FOR_THE_FILE = (
    f'\n{"-" * 60}\nSystem environment:',
    'Config:\n',
    'Hooks will be executed in the following order:\n',
    'paramwise_options -- ',
)
MMENGINES_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')


class SafeRunner(Runner):
    """mmengine's Runner with loops, checkpoint hook and data loaders of this package. Arguments: see mmengine.

    Environment, config, hooks and rates of parameters are only in the log file. log_level='DEBUG' prints them.
    """

    resumed_from: Optional[str] = None  # the checkpoint

    def register_default_hooks(self, hooks: Optional[dict[str, Union[Hook, dict[str, Any]]]] = None) -> None:
        # mmengine removes a default hook that is None
        hooks = {name: hook for name, hook in (hooks or {}).items() if hook is not None or name in MMENGINES_HOOKS}
        hooks['signals'] = SignalHook()
        checkpoint = hooks.setdefault('checkpoint', dict(type='CheckpointHook', interval=1))
        if isinstance(checkpoint, dict) and checkpoint['type'] in ('CheckpointHook', CheckpointHook):
            hooks['checkpoint'] = dict(checkpoint, type=WholeCheckpointHook)
        super().register_default_hooks(hooks)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if isinstance(handler, logging.FileHandler):
                if isinstance(handler.stream, io.TextIOWrapper):
                    handler.stream.reconfigure(errors='backslashreplace')  # for file names that are not UTF-8
                handler.handleError = _raise  # type: ignore[method-assign]  # logging itself prints a traceback for each line on a full disk
            elif logger.log_file and handler.level >= logging.INFO:
                handler.addFilter(lambda record: not record.getMessage().startswith(FOR_THE_FILE))
        if logger.log_file:
            hidden = 'environment, config, hooks, the rate of each parameter'
            logger.info(f"{hidden}: see {logger.log_file} (log_level='DEBUG' prints them here too)")
        return logger

    def wrap_model(self, model_wrapper_cfg: Optional[dict[str, Any]], model: nn.Module) -> nn.Module:
        """Accelerate the model first: in DistributedDataParallel, strides of parameters stay.

        In processes without CUDA, BN takes the place of SyncBN, which computes on GPUs alone.
        """
        sync_bn = None
        if get_device() == 'cpu':
            sync_bn = self.cfg.pop('sync_bn', None)
            has_sync_bn = sync_bn or any('SyncBatchNorm' in type(part).__name__ for part in model.modules())
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

    @staticmethod
    def build_dataloader(
        dataloader: Union[DataLoader[Any], dict[str, Any]], *args: Any, **kwargs: Any
    ) -> DataLoader[Any]:
        loader: DataLoader[Any] = Runner.build_dataloader(dataloader, *args, **kwargs)
        loader.worker_init_fn = partial(init_worker, loader.worker_init_fn)
        return loader

    def build_train_loop(self, loop: Union[BaseLoop, dict[str, Any]]) -> BaseLoop:
        return super().build_train_loop(placed(loop) if isinstance(loop, dict) else loop)

    def load_or_resume(self) -> None:
        if self._has_loaded or not self._resume or self._load_from is not None:
            super().load_or_resume()
            return
        hook = find_checkpoint_hook(self)
        folder = hook.folder(self) if hook is not None else self.work_dir
        path = newest_whole_checkpoint(self.work_dir, folder, hook.filename_tmpl if hook is not None else EPOCHS)
        if path is None:
            self.logger.warning(f'There is no checkpoint in {folder} to resume: training starts from the beginning.')
        else:
            self.resume(path)

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Continue from a checkpoint, as mmengine: see `fit_to_run`.

        Raises:
            CheckpointError: if the checkpoint does not fit. The run stays unchanged.
        """
        self._resume, self.resumed_from = True, filename
        super().resume(filename, *args, **kwargs)
        hook = find_checkpoint_hook(self)
        if hook is not None:
            hook.saved_iter, hook.saved_path = self.iter, filename

    def train(self) -> nn.Module:
        """Train, as mmengine.

        Raises:
            TrainingStopped: on a full disk, or after too many losses that are not finite.
        """
        try:
            trained: nn.Module = super().train()
            return trained
        except OSError as error:
            if error.errno not in CANNOT_WRITE:
                raise
            raise TrainingStopped(
                f'training stops, because {error.filename or self.work_dir} cannot be written '
                f'({error.strerror}). {name_of_last(find_checkpoint_hook(self))}'
            ) from error
        finally:
            for hook in self.hooks:
                if isinstance(hook, SignalHook):
                    hook.restore_handlers()


def _raise(record: logging.LogRecord) -> NoReturn:
    raise
