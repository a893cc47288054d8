"""The schedules of learning rates and momenta at the place where a resumed training goes on."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from mmengine.runner import EpochBasedTrainLoop, Runner

PLATEAU = ('best', 'num_bad_epochs', 'cooldown_counter', 'last_step')


def wind(runner: Runner, epoch: int, iteration: int, checkpoint: Mapping[str, Any]) -> None:
    """Step the schedules of the config as often as training did up to here.

    They are a function of the config and the position, and nothing of them is read from a checkpoint. The exception is
    a schedule that follows a metric (ReduceOnPlateau): its history and its rates are the checkpoint's.
    """
    loop = runner.train_loop
    length = len(runner.train_dataloader) if isinstance(loop, EpochBasedTrainLoop) else 0
    epochs = min(epoch, runner.max_epochs) if length else 0
    schedulers = [one for group in _by_optimizer(runner.param_schedulers).values() for one in group]
    each_step = [one for one in schedulers if not one.by_epoch]
    each_epoch = [one for one in schedulers if one.by_epoch]
    done = 0
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the optimizer takes no steps here
        for number in range(1, min(iteration, runner.max_iters) + 1):
            for one in each_step:
                one.step()
            if done < epochs and number % length == 0:
                done += 1
                for one in each_epoch:
                    one.step()
        for _ in range(epochs - done):  # a batch sampler may make fewer batches than its length
            for one in each_epoch:
                one.step()
    _follow_metrics(runner, checkpoint)


def rates(optimizer: Any) -> list[Any]:
    """Return the learning rates in the state of an optimizer, or of several by their names."""
    if not isinstance(optimizer, dict):
        return []
    groups = _groups(optimizer)
    return [group.get('lr') for group in groups] or [rate for inner in optimizer.values() for rate in rates(inner)]


def _groups(optimizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return parameter groups and behind them that of the wrapper, in the order of `OptimWrapper.param_groups`."""
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
