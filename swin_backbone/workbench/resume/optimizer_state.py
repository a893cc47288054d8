"""The optimizer of a resumed training: moments from the checkpoint, settings and schedulers from the config."""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor

PLATEAU = ('best', 'num_bad_epochs', 'cooldown_counter', 'last_step')


def load_optimizer(wrapper: OptimWrapper, saved: Mapping[str, Any]) -> None:
    """Load the moments of a checkpoint into an optimizer wrapper, which keeps its own settings.

    Args:
        saved: the `state_dict` of such a wrapper, from a checkpoint.

    Raises:
        ValueError: if the optimizers have other parameter groups.
    """
    state: dict[str, Any] = wrapper.state_dict()
    sizes, own_sizes = [[len(group['params']) for group in groups['param_groups']] for groups in (saved, state)]
    if sizes != own_sizes:
        raise ValueError(
            f'optimizer is of {sum(sizes)} parameters in {len(sizes)} groups, and this training has {sum(own_sizes)} '
            f'in {len(own_sizes)}: model or optimizer differ'
        )
    state['state'] = saved['state']
    for group, saved_group in zip(state['param_groups'], saved['param_groups']):
        group['params'] = saved_group['params']
    if state.get('loss_scaler') and saved.get('loss_scaler'):
        state['loss_scaler'].update({name: saved['loss_scaler'][name] for name in ('scale', '_growth_tracker')})
    wrapper.load_state_dict(state)
    for parameter, moments in wrapper.optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:  # fused optimizers assume this layout
                moments[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def step_schedulers(runner: Runner, epoch: int, iteration: int, checkpoint: Mapping[str, Any]) -> None:
    """Step the schedulers of the config up to a position.

    A rate is a function of config and position, and the saved state of its scheduler is not read. The exception is a
    scheduler that follows a metric (ReduceOnPlateau), with history and rates from the checkpoint.
    """
    length = len(runner.train_dataloader) if isinstance(runner.train_loop, EpochBasedTrainLoop) else 0
    epochs = min(epoch, runner.max_epochs) if length else 0
    schedulers = runner.param_schedulers or []
    done_epochs = 0

    def step(by_epoch: bool) -> None:
        for scheduler in schedulers:
            if scheduler.by_epoch == by_epoch:
                scheduler.step()

    for scheduler in schedulers:
        scheduler.optimizer._global_step = 0  # else mmengine warns of an optimizer without steps
    for iterations in range(1, min(iteration, runner.max_iters) + 1):
        step(by_epoch=False)
        if done_epochs < epochs and iterations % length == 0:
            done_epochs += 1
            step(by_epoch=True)
    for _ in range(epochs - done_epochs):  # a batch sampler may make fewer batches than its length
        step(by_epoch=True)
    optimizer = checkpoint.get('optimizer', {})
    for scheduler, state in zip(schedulers, checkpoint.get('param_schedulers', ())):
        if getattr(scheduler, 'need_val_args', False):
            scheduler.__dict__.update({key: state[key] for key in PLATEAU})
            saved_groups = [*optimizer['param_groups'], *filter(None, [optimizer.get('base_param_settings')])]
            for group, saved in zip(scheduler.optimizer.param_groups, saved_groups):
                group[scheduler.param_name] = saved[scheduler.param_name]
