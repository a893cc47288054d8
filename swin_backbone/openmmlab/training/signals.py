"""Signals to a training; a cluster sends them before it takes a machine away.

SIGTERM and SIGINT: finish the step, save, exit with `RESUMABLE`. A second one stops at once. SIGUSR1: save, go on.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, Optional

import torch
from mmengine.dist import all_reduce, barrier
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner

from ..checkpointing.checkpoint_hook import WholeCheckpointHook, find_checkpoint_hook, name_of_last

# EX_TEMPFAIL of sysexits.h: "temporary failure, try again". No shell, Python, torchrun or signal uses this status, so
# a scheduler can requeue on it alone.
RESUMABLE = 75

NOTHING, SAVE, STOP = range(3)
WANTED = {
    getattr(signal, name): wanted
    for name, wanted in (('SIGTERM', STOP), ('SIGINT', STOP), ('SIGUSR1', SAVE))
    if hasattr(signal, name)  # Windows has no SIGUSR1
}
SAME_S = 1.0  # seconds: a terminal and torchrun both send Ctrl-C, and count as one signal


class SignalHook(Hook):
    """Saves and stops on a signal, on all ranks after the same step.

    The hook runs last in a step. During validation a single process stops as soon as the last step is saved. Several
    processes stop after validation.
    """

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.save = self.stop = False
        self.received = 'A signal to another rank'
        self.received_at = 0.0
        self.process = 0
        self.handlers: dict[int, Any] = {}

    def before_train(self, runner: Runner) -> None:
        self.process = os.getpid()
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            for number in WANTED:
                self.handlers.setdefault(number, signal.signal(number, self._receive))

    def after_train(self, runner: Runner) -> None:
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Restore the earlier handlers."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers.clear()

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict[str, Any]] = None
    ) -> None:
        self._act(runner, runner.iter + 1)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if not self.stop:
            return
        hook = find_checkpoint_hook(runner)
        if hook is not None and hook.saved_iter == runner.iter:
            self._exit(runner, hook, runner.iter)
        if runner.world_size == 1:
            for other in runner.hooks:
                if isinstance(other, EMAHook):  # validation runs on the averaged weights
                    other.after_val_epoch(runner)
            self._act(runner, runner.iter)

    def after_val(self, runner: Runner) -> None:
        self._act(runner, runner.iter)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        if os.getpid() != self.process:  # in a forked worker
            return
        now = time.monotonic()
        if WANTED[number] == SAVE:
            self.save = True
        elif not self.stop:
            self.stop, self.received, self.received_at = True, signal.Signals(number).name, now
        elif now - self.received_at > SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(self.process, number)

    def _act(self, runner: Runner, iteration: int) -> None:
        """Do the most that any rank received, after `iteration` iterations."""
        agreed = torch.tensor(STOP if self.stop else SAVE if self.save else NOTHING)
        self.save = False  # a later signal saves again
        all_reduce(agreed, op='max')
        if agreed == NOTHING:
            return
        hook = find_checkpoint_hook(runner)
        if hook is not None:
            hook.save_now(runner, iteration)
            barrier()  # otherwise a launcher ends the saving rank when another one exits
        if agreed == STOP:
            self._exit(runner, hook, iteration)
        runner.logger.info(f'SIGUSR1: {name_of_last(hook)}')

    def _exit(self, runner: Runner, hook: Optional[WholeCheckpointHook], iteration: int) -> None:
        if hook is None:
            runner.logger.warning(f'{self.received}: training stops, and saves nothing without a CheckpointHook.')
            sys.exit(128 + signal.SIGTERM)
        runner.logger.info(
            f'{self.received}: training stops after iteration {iteration} (exit code {RESUMABLE}). {name_of_last(hook)}'
        )
        sys.exit(RESUMABLE)


class WorkerInit:
    """A data loader's `worker_init_fn` that also makes the worker ignore signals.

    A terminal and a cluster signal workers too, and a dead worker ends the training before the training has saved.
    SIGTERM from the training itself still ends a worker.
    """

    def __init__(self, own: Optional[Callable[[int], None]]) -> None:
        self.own = own

    def __call__(self, worker_id: int) -> None:
        for number in WANTED:
            if number != signal.SIGTERM:
                signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, 'sigwaitinfo'):  # returns the sender; macOS lacks it
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_end_by, args=(os.getppid(),), daemon=True).start()
        if self.own is not None:
            self.own(worker_id)


def _end_by(parent: int) -> None:
    """End this process on a SIGTERM from `parent` alone."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
