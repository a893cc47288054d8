"""Save checkpoints, with a complete checkpoint on the disk at any moment."""

import os
import re
from pathlib import Path
from typing import Any, Optional, Union

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from ...whole_files import PARTIAL, write_whole
from .exact_resume import resume_state
from .names import is_checkpoint_name, is_own_file


class WholeCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, but an old checkpoint is removed after the new checkpoint is on the disk.

    A checkpoint is written to a temporary file and renamed. Then `last_checkpoint` is written, then the oldest
    checkpoint removed. mmengine's own hook removes first and writes in place, so that an interruption can leave no
    checkpoint. `max_keep_ckpts=n` needs room for n + 1. `meta['exact_resume']` has the position in the data.
    """

    # Of the newest complete checkpoint; mmengine sets `last_ckpt` before the write
    saved_iter = -1
    saved_path: Optional[str] = None
    file_backend: Any

    def __init__(self, **settings: Any) -> None:
        if not any(map(settings.get, ('file_client_args', 'backend_args'))) and not _is_url(settings.get('out_dir')):
            settings['backend_args'] = dict(backend='whole')
        super().__init__(**settings)

    def before_train(self, runner: Runner) -> None:
        info = runner.message_hub.runtime_info
        for key in [key for key in info if key.startswith('best_ckpt')]:
            name = _name_of(info.pop(key))
            if self._is_own(name):
                info[key] = os.path.join(self.folder(runner), name)  # the folder may have moved
        kept = info.pop('keep_ckpt_ids', [])  # mmengine's hook removes surplus files
        super().before_train(runner)
        if is_main_process() and not _is_url(self.out_dir):
            for partial in Path(self.out_dir).glob(f'{PARTIAL}*'):  # of a killed process
                if self._is_own(partial.name.removeprefix(PARTIAL)) and is_own_file(partial):
                    partial.unlink()
        if self.max_keep_ckpts > 0:
            self.keep_ckpt_ids.extend(kept[-self.max_keep_ckpts :])
            self._remove([self._path(step) for step in kept[: -self.max_keep_ckpts]])

    def folder(self, runner: Runner) -> str:
        """Return the folder of the checkpoints, also before training."""
        if self.out_dir in (None, runner.work_dir):
            return str(runner.work_dir)
        return os.path.join(str(self.out_dir), os.path.basename(runner.work_dir.rstrip(os.sep)))

    def save_now(self, runner: Runner, iteration: int) -> None:
        """Save after `iteration` complete iterations, unless a checkpoint of them exists."""
        if self.saved_iter == iteration:
            return
        step: Union[int, str] = iteration
        if self.by_epoch:
            step = f'{runner.epoch}_iter_{iteration}' if getattr(runner.train_loop, 'batches_done', 0) else runner.epoch
        self._save_checkpoint_with_step(runner, step, dict(epoch=runner.epoch, iter=iteration))

    def _save_checkpoint_with_step(self, runner: Runner, step: Union[int, str], meta: dict[str, Any]) -> None:
        outdated = []
        if self.max_keep_ckpts > 0 and (not self.keep_ckpt_ids or self.keep_ckpt_ids[-1] != step):
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                outdated.append(self._path(self.keep_ckpt_ids.popleft()))
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        self.last_ckpt = self._path(step)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir,
            self.filename_tmpl.format(step),
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=dict(meta, exact_resume=resume_state(runner)),
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        self.saved_iter, self.saved_path = meta['iter'], self.last_ckpt
        if is_main_process():
            write_whole(Path(runner.work_dir) / 'last_checkpoint', str(self.last_ckpt).encode())
        self._remove(outdated)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        outdated: list[str] = []
        self.file_backend.remove = outdated.append  # mmengine removes before it saves
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            del self.file_backend.remove
        best = [path for key, path in runner.message_hub.runtime_info.items() if key.startswith('best_ckpt')]
        self._remove([path for path in outdated if path not in best])

    def _path(self, step: Union[int, str]) -> str:
        return str(self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step)))

    def _is_own(self, name: str) -> bool:
        return is_checkpoint_name(name, self.filename_tmpl, best=True)

    def _remove(self, paths: list[str]) -> None:
        """Remove checkpoints of this folder."""
        for path in paths if is_main_process() else ():
            is_here = path == self.file_backend.join_path(self.out_dir, _name_of(path))
            if is_here and self._is_own(_name_of(path)) and self.file_backend.isfile(path) and not os.path.islink(path):
                self.file_backend.remove(path)


def find_checkpoint_hook(runner: Runner) -> Optional[WholeCheckpointHook]:
    """Return the runner's hook that saves checkpoints, or None."""
    return next((hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook)), None)


def name_of_last(hook: Optional[WholeCheckpointHook]) -> str:
    """Return a sentence with the last complete checkpoint."""
    if hook is None or hook.saved_path is None:
        return 'No checkpoint has been written.'
    return f'The last whole checkpoint is {hook.saved_path}; --resume goes on from there.'


def _name_of(path: str) -> str:
    return re.split(r'[/\\]', path)[-1]


def _is_url(folder: Any) -> bool:
    return '://' in str(folder)
