"""Signals to a training, as of a cluster before it takes a machine away.

SIGTERM and SIGINT: finish the step, save, exit with `RESUMABLE`. A second signal stops at once. SIGUSR1: save.
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

from ..resume.checkpoint_hook import WholeCheckpointHook, find_checkpoint_hook, name_of_last

# EX_TEMPFAIL of sysexits.h: "temporary failure, try again". Shells, Python, torchrun and signals use other values, and
# a scheduler can requeue by this value.
RESUMABLE = 75

NOTHING, SAVE, STOP = range(3)
ACTIONS = {
    getattr(signal, name): action
    for name, action in (('SIGTERM', STOP), ('SIGINT', STOP), ('SIGUSR1', SAVE))
    if hasattr(signal, name)  # Windows has no SIGUSR1
}
SAME_S = 1.0  # seconds in which two signals count once: terminal and torchrun send Ctrl-C
AGREE_S = 1.0  # seconds between two agreements of ranks in training: over NCCL each agreement waits for the GPU


class SignalHook(Hook):
    """Save and stop on a signal, on all ranks after the same step: a process at once, several about once a second.

    The hook runs last in a step. During validation, a single process stops as soon as the last step is saved. Several
    processes stop after validation.
    """

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.save = self.stop = False
        self.received = 'A signal to another rank'
        self.received_at = 0.0
        self.agreed_at = 0.0  # seconds, of the last agreement
        self.agreed_after = self.agree_after = 0  # iterations, of the last and the next agreement
        self.process = 0
        self.handlers: dict[int, Any] = {}

    def before_train(self, runner: Runner) -> None:
        self.process = os.getpid()
        self.agreed_at, self.agreed_after, self.agree_after = time.perf_counter(), runner.iter, 0
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            for number in ACTIONS:
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
        if runner.world_size == 1 or runner.iter + 1 >= self.agree_after:
            self._act(runner, runner.iter + 1)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if not self.stop or runner.world_size > 1:  # the other ranks have no signal, or another picture
            return
        hook = find_checkpoint_hook(runner)
        if hook is not None and hook.saved_iter != runner.iter:
            for ema in runner.hooks:
                if isinstance(ema, EMAHook):  # validation runs on the averaged weights
                    ema.after_val_epoch(runner)
        self._act(runner, runner.iter)

    def after_val(self, runner: Runner) -> None:
        self._act(runner, runner.iter)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        if os.getpid() != self.process:  # in a forked worker
            return
        now = time.monotonic()
        if ACTIONS[number] == SAVE:
            self.save = True
        elif not self.stop:
            self.stop, self.received, self.received_at = True, signal.Signals(number).name, now
        elif now - self.received_at > SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(self.process, number)

    def _act(self, runner: Runner, iteration: int) -> None:
        """Act on the strongest signal of all ranks, after `iteration` iterations."""
        action = STOP if self.stop else SAVE if self.save else NOTHING
        self.save = False  # a later signal saves again
        if runner.world_size > 1:
            action = self._agree(action, iteration)
        if action == NOTHING:
            return
        hook = find_checkpoint_hook(runner)
        if hook is not None:
            hook.save_now(runner, iteration)
            barrier()  # a launcher ends the saving rank after the exit of another rank
        if action == STOP:
            self._exit(runner, hook, iteration)
        runner.logger.info(f'SIGUSR1: {name_of_last(hook)}')

    def _agree(self, action: int, iteration: int) -> int:
        """Return the strongest action of all ranks, and plan the next agreement by the steps of the slowest rank."""
        now, steps = time.perf_counter(), iteration - self.agreed_after
        agreed = torch.tensor([action, now - self.agreed_at])
        all_reduce(agreed, op='max')
        strongest, seconds = agreed.tolist()
        self.agreed_at, self.agreed_after = now, iteration
        if steps:  # none in a validation
            self.agree_after = iteration + max(1, int(AGREE_S * steps / seconds))
        return int(strongest)

    def _exit(self, runner: Runner, hook: Optional[WholeCheckpointHook], iteration: int) -> None:
        if hook is None:
            runner.logger.warning(f'{self.received}: training stops, and saves nothing without a CheckpointHook.')
            sys.exit(128 + signal.SIGTERM)
        runner.logger.info(
            f'{self.received}: training stops after iteration {iteration} (exit code {RESUMABLE}). {name_of_last(hook)}'
        )
        sys.exit(RESUMABLE)


def init_worker(own: Optional[Callable[[int], None]], worker_id: int) -> None:
    """Make a worker of a data loader ignore signals, then call the loader's own `worker_init_fn`.

    Terminals and clusters signal workers too, and a dead worker would end the training without a checkpoint. SIGTERM
    from the training itself still ends a worker.
    """
    for number in ACTIONS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):  # returns the sender; macOS lacks it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_by, args=(os.getppid(),), daemon=True).start()
    if own is not None:
        own(worker_id)


def _end_by(parent: int) -> None:
    """End this process on a SIGTERM from `parent` alone."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
