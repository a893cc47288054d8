"""Save checkpoints, with a complete checkpoint on the disk at any moment."""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Optional, Union

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from ...openmmlab.errors import ConfigError
from ...whole_files import LEFTOVER, write_whole
from ..data.datasets import iter_base_datasets
from .exact_resume import collect_position
from .loops import ResumableLoop

CHECKPOINT = re.compile(r'(best_.*)?(epoch|iter)_\d+(_iter_\d+)?\.pth')
LEFTOVER_CHECKPOINT = re.compile(LEFTOVER.pattern + CHECKPOINT.pattern)


class _FileNames(str):
    """A template of file names, as epoch_{}.pth. The step is an epoch, an iteration, or '2_iter_9' within an epoch."""

    def format(self, step: Union[int, str]) -> str:  # type: ignore[override]
        epoch, *iteration = str(step).split('_', 1)  # or an iteration alone
        return re.sub(r'\{.*?\}', lambda field: '_'.join([field[0].format(int(epoch)), *iteration]), self)


class WholeFileBackend(LocalBackend):
    """mmengine's backend of local files, with `write_whole` for `put`."""

    def put(self, obj: bytes, filepath: Union[str, Path]) -> None:
        write_whole(filepath, obj)


register_backend('whole', WholeFileBackend, force=True)


class WholeCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, with a complete checkpoint on the disk at any moment.

    A new checkpoint is written to a temporary file and renamed; then `last_checkpoint` is written; then the oldest
    checkpoint is removed. mmengine removes first and writes in place, and an interruption can leave no checkpoint.
    `max_keep_ckpts=n` needs room for n + 1. `meta['exact_resume']` has the position in the data.

    `save_last` also holds for a training that another hook ends, such as EarlyStoppingHook.

    Raises:
        ConfigError: if `save_best` names no metric of the validation.
    """

    saved_iter = -1  # iteration of the newest complete checkpoint; mmengine sets `last_ckpt` before the write
    saved_path: Optional[str] = None
    metric_names: Collection[str] = ()  # by MetricNamesHook's trial; a validation without objects has fewer
    file_backend: Any
    filename_tmpl: Any

    def __init__(self, **settings: Any) -> None:
        if not any(map(settings.get, ('file_client_args', 'backend_args'))) and '://' not in str(
            settings.get('out_dir')
        ):
            settings['backend_args'] = dict(backend='whole')
        super().__init__(**settings)
        self.filename_tmpl = _FileNames(self.filename_tmpl)

    def before_train(self, runner: Runner) -> None:
        info = runner.message_hub.runtime_info
        for key in [key for key in info if key.startswith('best_ckpt')]:  # the folder may have moved
            info[key] = os.path.join(self.find_folder(runner), re.split(r'[/\\]', info[key])[-1])
        folder = Path(self.find_folder(runner))
        earlier = sorted(path.name for path in folder.glob('*.pth') if CHECKPOINT.fullmatch(path.name))
        if earlier and not runner.iter and is_main_process():
            runner.logger.warning(
                f'{folder} has checkpoints of an earlier training, as {earlier[-1]}. This training begins anew and '
                'replaces those of equal names; --resume continues the earlier one.'
            )
        super().before_train(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        ids = [getattr(base, 'cat_ids', None) for base in iter_base_datasets(runner.train_dataloader.dataset)]
        if ids and isinstance(ids[0], list) and ids.count(ids[0]) == len(ids):  # files may disagree
            checkpoint['meta']['category_ids'] = ids[0]

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float]) -> None:
        if isinstance(runner._train_loop, ResumableLoop):
            runner._train_loop.validated_iter = runner.iter  # set before a checkpoint is saved at this moment
        super().after_val_epoch(runner, metrics)

    def after_train(self, runner: Runner) -> None:
        if self.save_last and runner.iter:
            self.save_now(runner, runner.iter)
        super().after_train(runner)

    def find_folder(self, runner: Runner) -> str:
        """Return the folder of the checkpoints. `out_dir` has it after `before_train`."""
        if self.out_dir in (None, runner.work_dir):
            return str(runner.work_dir)
        return os.path.join(str(self.out_dir), os.path.basename(runner.work_dir.rstrip(os.sep)))

    def save_now(self, runner: Runner, iteration: int) -> None:
        """Save the state after `iteration` complete iterations, unless it is saved already."""
        if self.saved_iter == iteration:
            return
        step: Union[int, str] = iteration
        if self.by_epoch:
            step = f'{runner.epoch}_iter_{iteration}' if getattr(runner.train_loop, 'batches_done', 0) else runner.epoch
        self._save_checkpoint_with_step(runner, step, dict(epoch=runner.epoch, iter=iteration))

    def _save_checkpoint_with_step(self, runner: Runner, step: Union[int, str], meta: dict[str, Any]) -> None:
        with self._remove_after_saving(runner):
            super()._save_checkpoint_with_step(runner, step, dict(meta, exact_resume=collect_position(runner)))
        self.saved_iter = meta['iter']
        self.saved_path = self.last_ckpt

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        for name in self.key_indicators if self.save_best else ():
            if name != 'auto' and name not in metrics:
                if name not in self.metric_names:
                    raise make_metric_error('default_hooks.checkpoint.save_best', name, metrics)
                runner.logger.warning(f'This validation has no {name}: the best checkpoint stays.')
                return
        with self._remove_after_saving(runner):
            super()._save_best_checkpoint(runner, metrics)

    @contextmanager
    def _remove_after_saving(self, runner: Runner) -> Iterator[None]:
        """Remove old checkpoints at the end of the context, if no error ends it. mmengine removes before it saves."""
        backend = self.file_backend
        delayed = self.file_backend = _DelayedRemoval(backend)
        try:
            yield
        finally:
            self.file_backend = backend
        best = [path for key, path in runner.message_hub.runtime_info.items() if key.startswith('best_ckpt')]
        for path in delayed.paths:
            if path not in best:  # a new file of the same name
                backend.remove(path)


class _DelayedRemoval:
    """A file backend whose `remove` only lists the path."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.paths: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.paths.append(path)


def remove_leftover_checkpoints(work_dir: str) -> None:
    """Remove the half-written checkpoints of killed trainings. The caller holds the lock of trainings in the folder."""
    for path in Path(work_dir).iterdir():
        if LEFTOVER_CHECKPOINT.fullmatch(path.name):
            with suppress(OSError):  # of another user
                path.unlink()


def find_checkpoint_hook(runner: Runner) -> Optional[WholeCheckpointHook]:
    """Return the runner's hook that saves checkpoints, or None."""
    return next((hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook)), None)


def describe_last_checkpoint(hook: Optional[WholeCheckpointHook]) -> str:
    """Return a sentence with the last complete checkpoint."""
    if hook is None or hook.saved_path is None:
        return 'No checkpoint has been written.'
    return f'The last whole checkpoint is {hook.saved_path}; --resume goes on from there.'


def make_metric_error(setting: str, name: str, metrics: Iterable[str]) -> ConfigError:
    """Return the error for a setting with the name of a metric that the validation does not have."""
    nearest = get_close_matches(name, metrics, 1)
    hint = f'; did you mean {nearest[0]}?' if nearest else ''
    return ConfigError(f'{setting} takes a metric of the validation, {", ".join(metrics)}, got {name!r}{hint}')
