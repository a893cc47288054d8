"""Place the schedules of learning rates and momenta at the position of a resumed training."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from mmengine.runner import EpochBasedTrainLoop, Runner

PLATEAU = ('best', 'num_bad_epochs', 'cooldown_counter', 'last_step')


def wind(runner: Runner, epoch: int, iteration: int, checkpoint: Mapping[str, Any]) -> None:
    """Step the schedules of the config up to a position.

    A schedule is a function of config and position, and its saved state is not read. The exception is a schedule that
    follows a metric (ReduceOnPlateau), with history and rates from the checkpoint.
    """
    loop = runner.train_loop
    length = len(runner.train_dataloader) if isinstance(loop, EpochBasedTrainLoop) else 0
    epochs = min(epoch, runner.max_epochs) if length else 0
    schedulers = [scheduler for group in _by_optimizer(runner.param_schedulers).values() for scheduler in group]
    done = 0

    def step(by_epoch: bool) -> None:
        for scheduler in schedulers:
            if scheduler.by_epoch == by_epoch:
                scheduler.step()

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the optimizer takes no steps here
        for number in range(1, min(iteration, runner.max_iters) + 1):
            step(by_epoch=False)
            if done < epochs and number % length == 0:
                done += 1
                step(by_epoch=True)
        for _ in range(epochs - done):  # a batch sampler may make fewer batches than its length
            step(by_epoch=True)
    _follow_metrics(runner, checkpoint)


def rates(optimizer: Any) -> list[Any]:
    """Return the learning rates in the state of an optimizer, or of several optimizers by name."""
    if not isinstance(optimizer, dict):
        return []
    groups = _groups(optimizer)
    return [group.get('lr') for group in groups] or [rate for inner in optimizer.values() for rate in rates(inner)]


def _groups(optimizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return parameter groups, then the group of the wrapper, in the order of `OptimWrapper.param_groups`."""
    base = optimizer.get('base_param_settings')
    return [*(optimizer.get('param_groups') or ()), *([] if base is None else [base])]


def _by_optimizer(schedulers: Any) -> dict[Optional[str], Sequence[Any]]:
    return schedulers if isinstance(schedulers, dict) else {None: schedulers or []}


def _follow_metrics(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    saved, optimizers = checkpoint.get('param_schedulers'), checkpoint.get('optimizer')
    if saved is None or optimizers is None:
        return
    for name, schedulers in _by_optimizer(runner.param_schedulers).items():
        for index, scheduler in enumerate(schedulers):
            if not getattr(scheduler, 'need_val_args', False):
                continue
            state = (saved if name is None else saved[name])[index]
            scheduler.__dict__.update({key: state[key] for key in PLATEAU})
            groups = _groups(optimizers if name is None else optimizers[name])
            for group, theirs in zip(scheduler.optimizer.param_groups, groups):
                group[scheduler.param_name] = theirs[scheduler.param_name]
