"""Signals to a training, for example before a cluster takes its machine away.

SIGTERM, SIGINT and SIGHUP (a closed terminal): finish the step, save, raise StoppedBySignal. A second signal stops at
once. SIGUSR1: save. Ignored signals stay ignored, as SIGHUP by nohup.
"""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Callable, NoReturn, Optional

import torch
from mmengine.dist import all_reduce, barrier
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner

from ....openmmlab.errors import TrainingStopped
from ...resume.checkpoint_hook import WholeCheckpointHook, describe_last_checkpoint, find_checkpoint_hook

# EX_TEMPFAIL of sysexits.h: "temporary failure, try again". Shells, Python, torchrun and signals use other values, and
# a scheduler can requeue by this value.
EXIT_RESUMABLE = 75

NOTHING, SAVE, STOP = range(3)  # the larger one wins
ACTIONS = {
    getattr(signal, name): action
    for name, action in (('SIGTERM', STOP), ('SIGINT', STOP), ('SIGHUP', STOP), ('SIGUSR1', SAVE))
    if hasattr(signal, name)  # Windows has no SIGHUP and SIGUSR1
}
REPEATED_S = 1.0  # signals within these seconds count as one: terminal and torchrun both send Ctrl-C
AGREEMENT_S = 1.0  # seconds between two agreements (the largest action of all ranks): over NCCL one waits for the GPU


class StoppedBySignal(TrainingStopped):
    """The end of a training by a signal. The log has the message.

    Args:
        status: exit status of tools/train.py.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class SignalHook(Hook):
    """Save on SIGUSR1, and save and stop on SIGTERM, SIGINT and SIGHUP, after the current step.

    Several processes compare their signals about once a second, and act after the same step. During a validation, a
    single process stops at once, after the last step is saved; several processes stop after the validation.
    """

    priority = 'LOWEST'  # after the hooks that save the step
    save_requested = stop_requested = False
    stop_reason = 'A signal to another rank'
    stop_signum: int = signal.SIGTERM
    stop_requested_at = 0.0  # seconds
    last_agreement_at = 0.0  # seconds
    last_agreement_iter = next_agreement_iter = 0
    process = 0
    earlier_handlers: tuple[tuple[int, Any], ...] = ()  # signals and their handlers

    def before_train(self, runner: Runner) -> None:
        self.process = os.getpid()
        self.last_agreement_at = time.perf_counter()
        self.last_agreement_iter = runner.iter
        self.next_agreement_iter = 0
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            signums = [signum for signum in ACTIONS if signal.getsignal(signum) is not signal.SIG_IGN]
            self.earlier_handlers = tuple((signum, signal.signal(signum, self._receive)) for signum in signums)

    def after_train(self, runner: Runner) -> None:
        self.close()

    def close(self) -> None:
        """Restore the handlers from before the training."""
        for signum, handler in self.earlier_handlers:
            signal.signal(signum, handler)
        self.earlier_handlers = ()

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict[str, Any]] = None
    ) -> None:
        if runner.world_size == 1 or runner.iter + 1 >= self.next_agreement_iter:
            self._act(runner, runner.iter + 1)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if not self.stop_requested or runner.world_size > 1:
            return
        hook = find_checkpoint_hook(runner)
        if hook is not None and hook.saved_iter != runner.iter:
            for ema in runner.hooks:
                if isinstance(ema, EMAHook):  # the model has the averages in a validation
                    ema.after_val_epoch(runner)
        self._act(runner, runner.iter)

    def after_val(self, runner: Runner) -> None:
        self._act(runner, runner.iter)

    def _receive(self, signum: int, frame: Optional[FrameType]) -> None:
        """Handle a signal."""
        if os.getpid() != self.process:  # in a forked worker
            if signum == signal.SIGTERM:  # from its pool, as VOCMetric's, which then waits for its end
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
            return
        now = time.monotonic()
        if ACTIONS[signum] == SAVE:
            self.save_requested = True
        elif not self.stop_requested:
            self.stop_requested = True
            self.stop_requested_at = now
            self.stop_signum = signum
            self.stop_reason = signal.Signals(signum).name
        elif now - self.stop_requested_at > REPEATED_S:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(self.process, signum)

    def _act(self, runner: Runner, iteration: int) -> None:
        """Save, or save and stop, if a signal to any rank requests it. `iteration` iterations are complete."""
        action = STOP if self.stop_requested else SAVE if self.save_requested else NOTHING
        self.save_requested = False  # a later signal saves again
        if runner.world_size > 1:
            action = self._agree_on_action(action, iteration)
        if action == NOTHING:
            return
        hook = find_checkpoint_hook(runner)
        if hook is not None:
            hook.save_now(runner, iteration)
            barrier()  # a launcher ends the saving rank after the exit of another rank
        if action == STOP:
            self._stop(runner, hook, iteration)
        runner.logger.info(f'SIGUSR1: {describe_last_checkpoint(hook)}')

    def _agree_on_action(self, action: int, iteration: int) -> int:
        """Return the largest action of all ranks, and plan the next agreement by the speed of the slowest rank."""
        now = time.perf_counter()
        steps = iteration - self.last_agreement_iter
        largest = torch.tensor([action, now - self.last_agreement_at])
        all_reduce(largest, op='max')
        agreed_action, seconds = largest.tolist()
        self.last_agreement_at = now
        self.last_agreement_iter = iteration
        if steps:  # a validation has none
            self.next_agreement_iter = iteration + max(1, int(AGREEMENT_S * steps / seconds))
        return int(agreed_action)

    def _stop(self, runner: Runner, hook: Optional[WholeCheckpointHook], iteration: int) -> NoReturn:
        if hook is None:
            message = f'{self.stop_reason}: training stops, and saves nothing without a CheckpointHook.'
            runner.logger.warning(message)
            raise StoppedBySignal(message, 128 + self.stop_signum)
        message = (
            f'{self.stop_reason}: training stops after iteration {iteration} (exit code {EXIT_RESUMABLE}). '
            f'{describe_last_checkpoint(hook)}'
        )
        runner.logger.info(message)
        raise StoppedBySignal(message, EXIT_RESUMABLE)


def init_worker(worker_init_fn: Optional[Callable[[int], None]], worker_id: int) -> None:
    """Make a worker of a data loader ignore signals, then call the loader's own `worker_init_fn`.

    Terminals and clusters signal workers too, and a dead worker would end the training without a checkpoint. SIGTERM
    from the training itself still ends a worker.
    """
    for signum in ACTIONS:
        if signum != signal.SIGTERM:
            signal.signal(signum, signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):  # returns the sender; macOS lacks it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_on_sigterm_of, args=(os.getppid(),), daemon=True).start()
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _end_on_sigterm_of(parent: int) -> None:
    """Wait for a SIGTERM from `parent`, and end this process. Those of other processes have no effect."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
