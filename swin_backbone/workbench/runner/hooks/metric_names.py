"""Compare the metrics that a config names with the metrics of a trial validation, before the first step."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from mmengine.runner import Runner, ValLoop
from mmengine.structures import InstanceData

from ....openmmlab.errors import ConfigError, describe_error
from ...data.seeds import preserve_rng_state
from ...resume.checkpoint_hook import find_checkpoint_hook, make_metric_error
from ..rank_errors import collect_error, raise_together
from .val_loss import ValLossHook


class MetricNamesHook(Hook):
    """Compare the metrics that a config names with the metrics of a trial validation, before the first step.

    Named are metrics by `save_best` of CheckpointHook, and by `monitor` of EarlyStoppingHook and of a scheduler that
    follows a metric. The trial is a validation of one picture for each process, with copies of the metrics. A trial
    that fails is ignored: some metrics need more than one picture. There is no trial if a foreign loop or hook
    may add metrics.
    """

    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        """See `Hook`. Raises ConfigError for a metric that the validation does not have."""
        named = list(_iter_named_metrics(runner))
        if not named or type(runner.val_loop) is not ValLoop or any(map(_may_add_metrics, runner.hooks)):
            return
        looked_for = ', '.join(name for _, name in named)
        runner.logger.info(f'Trial validation of one picture, to check the names of metrics: {looked_for}')
        try:
            metrics = _compute_trial_metrics(runner)
        except Exception as error:  # no error here stops a training
            runner.logger.info(f'The validation of one picture failed: {describe_error(error)}')
            return
        checkpoint = find_checkpoint_hook(runner)
        has_losses = any(isinstance(hook, ValLossHook) for hook in runner.hooks)
        for setting, name in named:
            if name in metrics or (has_losses and name.startswith('val_')):  # `val_loss` and its terms
                continue
            if name == 'val_loss':
                raise ConfigError(f'{setting} names val_loss, which --val-loss computes')
            raise make_metric_error(setting, name, metrics)
        if checkpoint is not None:
            checkpoint.metric_names = metrics


def _may_add_metrics(hook: Hook) -> bool:
    cls = type(hook)
    is_known = cls.__module__.partition('.')[0] in ('mmengine', __name__.partition('.')[0])
    return cls.after_val_epoch is not Hook.after_val_epoch and not is_known


def _iter_named_metrics(runner: Runner) -> Iterator[tuple[str, str]]:
    """Yield settings and the metrics that they name."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            yield from (('default_hooks.checkpoint.save_best', name) for name in hook.save_best or () if name != 'auto')
        elif isinstance(hook, EarlyStoppingHook):
            yield 'monitor of EarlyStoppingHook', hook.monitor
    schedulers = runner.param_schedulers if isinstance(runner.param_schedulers, list) else ()
    for scheduler in schedulers:
        if getattr(scheduler, 'need_val_args', False):
            yield f'monitor of {type(scheduler).__name__}', scheduler.monitor


def _compute_trial_metrics(runner: Runner) -> dict[str, float]:
    loader = runner.val_loop.dataloader
    evaluator = copy.copy(runner.val_loop.evaluator)
    evaluator.metrics = [_copy_metric(metric) for metric in evaluator.metrics]
    errors: list[str] = []
    for metric in evaluator.metrics:
        metric.compute_metrics = partial(_compute_or_none, metric.compute_metrics, errors)
    runner.model.eval()
    with preserve_rng_state(), torch.no_grad():
        with collect_error(errors):
            batch = loader.collate_fn([loader.dataset[runner.rank % len(loader.dataset)]])
            samples = runner.model.val_step(batch)
            for sample in samples:
                _add_an_object(sample)
            evaluator.process(data_samples=samples, data_batch=batch)
        raise_together(errors)  # else the other processes wait in `evaluate`
        metrics: dict[str, float] = evaluator.evaluate(runner.world_size)
        raise_together(errors)
    return metrics


def _compute_or_none(compute_metrics: Callable[[Any], dict[str, Any]], errors: list[str], results: Any) -> Any:
    """Return the metrics, or none after an error: the first process computes, and all others wait for it."""
    with collect_error(errors):
        return compute_metrics(results)
    return {}


def _copy_metric(metric: Any) -> Any:
    """Return a copy of a metric with lists and dicts of its own, and the same COCO annotations."""
    copied = copy.copy(metric)
    for name, value in vars(metric).items():
        if isinstance(value, (list, dict, set)):
            setattr(copied, name, copy.copy(value))
    return copied


def _add_an_object(sample: Any) -> None:
    """Add an object of zeros to a detector's prediction without objects, for which COCO's metrics have no names."""
    objects = getattr(sample, 'pred_instances', None)
    if isinstance(objects, InstanceData) and not len(objects):
        single = {name: value.new_zeros(1, *value.shape[1:]) for name, value in objects.items()}
        sample.pred_instances = InstanceData(**single)
