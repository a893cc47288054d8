"""The schedules of learning rates and momenta, brought to where a resumed training goes on."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from mmengine.runner import EpochBasedTrainLoop, Runner

from .fields import COUNT, DICT, NUMBER, Field, check, is_count, is_number

STEP = Field('a whole number from -1', lambda value: value == -1 or is_count(value))
PLATEAU = {'best': NUMBER, 'num_bad_epochs': COUNT, 'cooldown_counter': COUNT, 'last_step': STEP}
RATE = Field('a finite number from 0', lambda value: is_number(value) and 0 <= value < math.inf)


def wind(runner: Runner, epoch: int, iteration: int, checkpoint: Mapping[str, Any]) -> None:
    """Step the schedules that the config asks for as often as training up to here did.

    They are a function of the config and the position, so that nothing of them is read from a checkpoint. A schedule
    that follows a metric (ReduceOnPlateau) is not: what it has seen and the rates that it lowered are the checkpoint's.

    Raises:
        ValueError: if those are no numbers.
    """
    loop = runner.train_loop
    length = len(runner.train_dataloader) if isinstance(loop, EpochBasedTrainLoop) else 0
    epochs = min(epoch, runner.max_epochs) if length else 0
    schedulers = list(_schedulers(runner.param_schedulers).values())
    each_step = [one for group in schedulers for one in group if not one.by_epoch]
    each_epoch = [one for group in schedulers for one in group if one.by_epoch]
    done = 0
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that the optimizer takes no steps
        for number in range(1, min(iteration, runner.max_iters) + 1):
            for one in each_step:
                one.step()
            if done < epochs and number % length == 0:
                done += 1
                for one in each_epoch:
                    one.step()
        for _ in range(epochs - done):  # of a batch sampler that makes fewer batches than it says
            for one in each_epoch:
                one.step()
    _follow_metrics(runner, checkpoint)


def rates(optimizer: Any) -> list[Any]:
    """The learning rates in the state of an optimizer, or of several by their names."""
    if not isinstance(optimizer, dict):
        return []
    groups = _groups(optimizer)
    return [group.get('lr') for group in groups] or [rate for inner in optimizer.values() for rate in rates(inner)]


def _groups(optimizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Parameter groups in an optimizer's state, behind them that of its wrapper, as `OptimWrapper.param_groups`."""
    groups = optimizer.get('param_groups')
    found = [*(groups if isinstance(groups, (list, tuple)) else []), optimizer.get('base_param_settings')]
    return [group for group in found if isinstance(group, dict)]


def _schedulers(schedulers: Any) -> dict[Optional[str], Sequence[Any]]:
    """By the name of their optimizer, None where there is one alone."""
    return schedulers if isinstance(schedulers, dict) else {None: schedulers or []}


def _follow_metrics(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    saved, optimizers = checkpoint.get('param_schedulers'), checkpoint.get('optimizer')
    for name, schedulers in _schedulers(runner.param_schedulers).items():
        for index, scheduler in enumerate(schedulers):
            if not getattr(scheduler, 'need_val_args', False) or saved is None or optimizers is None:
                continue
            where = f'param_schedulers[{index}]'
            states: Any = saved
            optimizer: Any = optimizers
            if name is not None:
                check(saved, DICT, 'param_schedulers')
                where, states, optimizer = f'param_schedulers.{name}[{index}]', saved.get(name), optimizers.get(name)
            check(optimizer, DICT, 'optimizer')
            state: Any = states[index] if isinstance(states, (list, tuple)) and index < len(states) else None
            check(state, PLATEAU, where)
            scheduler.__dict__.update({key: state[key] for key in PLATEAU})
            for group, theirs in zip(scheduler.optimizer.param_groups, _groups(optimizer)):
                value = theirs.get(scheduler.param_name)
                check(value, RATE, f'optimizer.param_groups: {scheduler.param_name}')
                group[scheduler.param_name] = value
