"""Validation and test: predictions that depend neither on the batch nor on the process, and COCO's areas of masks."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Optional

import torch
from mmengine.dist import all_gather_object, broadcast, is_main_process
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from mmengine.runner import Runner, ValLoop
from mmengine.structures import InstanceData

from ....openmmlab.errors import describe_error
from ....whole_files import write_whole
from ...data.seeds import preserve_rng_state
from ...resume.checkpoint_hook import find_checkpoint_hook, make_metric_error
from ..predict_by_shape import predict_by_shape


class PredictByShapeHook(Hook):
    """Let a validation or a test call the model's step by shape: see `predict_by_shape`.

    The step is replaced on the model of the runner, for the time of the loop: any loop of a config calls it there.
    """

    restore: Optional[Callable[[], None]] = None  # the model's own step, during a loop

    def _before_epoch(self, runner: Runner, mode: str = 'train') -> None:
        """Replace the step. mmengine calls this method before each epoch of a training, validation or test."""
        if mode == 'train':
            return
        model, name = runner.model, f'{mode}_step'
        before = vars(model).get(name)  # a method that a user has set on the instance

        def restore() -> None:
            vars(model).pop(name, None)
            if before is not None:
                setattr(model, name, before)

        self.restore = restore
        setattr(model, name, partial(predict_by_shape, getattr(model, name)))

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        self.close()

    def close(self) -> None:
        """Give the model its own step back, also after an error in the loop."""
        if self.restore is not None:
            self.restore()
            self.restore = None


class MetricNamesHook(Hook):
    """Compare the metrics that a config names with those of a trial validation, before the first step.

    Named are metrics by `save_best` of CheckpointHook, and by `monitor` of EarlyStoppingHook and of a schedule that
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
        runner.logger.info(f'A validation of one picture looks for the metric {named[0][1]}:')
        try:
            metrics = _trial_metrics(runner)
        except Exception as error:  # no error here stops a training
            runner.logger.info(f'The validation of one picture failed: {describe_error(error)}')
            return
        checkpoint = find_checkpoint_hook(runner)
        for setting, name in named:
            if name not in metrics and not name.startswith('val_'):  # `val_loss` and its terms: see ValLossHook
                raise make_metric_error(setting, name, metrics)
        if checkpoint is not None:
            checkpoint.metric_names = metrics


def _may_add_metrics(hook: Hook) -> bool:
    kind = type(hook)
    is_known = kind.__module__.partition('.')[0] in ('mmengine', __name__.partition('.')[0])
    return kind.after_val_epoch is not Hook.after_val_epoch and not is_known


def _iter_named_metrics(runner: Runner) -> Iterator[tuple[str, str]]:
    """Yield settings and the metrics that they name."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            yield from (('default_hooks.checkpoint.save_best', name) for name in hook.save_best or () if name != 'auto')
        elif isinstance(hook, EarlyStoppingHook):
            yield 'monitor of EarlyStoppingHook', hook.monitor
    schedules = runner.param_schedulers if isinstance(runner.param_schedulers, list) else ()
    for schedule in schedules:
        if getattr(schedule, 'need_val_args', False):
            yield f'monitor of {type(schedule).__name__}', schedule.monitor


def _trial_metrics(runner: Runner) -> dict[str, float]:
    loader, evaluator = runner.val_loop.dataloader, copy.copy(runner.val_loop.evaluator)
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


@contextmanager
def collect_error(errors: list[str]) -> Iterator[None]:
    """Add an error to a list, as a sentence, in place of raising it: see `raise_together`."""
    try:
        yield
    except Exception as error:
        errors.append(describe_error(error))


def raise_together(errors: list[str], group: Any = None) -> None:
    """Raise ValueError in all processes of a run if one of them has errors. All processes call this function.

    Args:
        group: of `torch.distributed`; None for that of the run.
    """
    sentences = [sentence for part in all_gather_object(errors, group) for sentence in part]
    if sentences:
        raise ValueError(sentences[0])


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


class BroadcastBuffersHook(Hook):
    """Before a validation, give all processes the buffers of the first process, which are in its checkpoints.

    Running statistics of batch norm differ between processes: `DistributedDataParallel` of mmengine's runner has
    broadcast_buffers=False. Each process validates a part of the pictures.
    """

    priority = 'VERY_LOW'  # after EMAHook, which puts the averages into the model

    def before_val_epoch(self, runner: Runner) -> None:
        if runner.distributed:
            saved = runner.model.state_dict()
            for name, buffer in runner.model.named_buffers():
                if name in saved and buffer.is_floating_point():
                    broadcast(buffer)


class MaskAreasHook(Hook):
    """Remove the boxes from `PREFIX.segm.json`, which mmdet's CocoMetric writes with outfile_prefix=PREFIX.

    mmdet evaluates masks without boxes. With boxes in the file, pycocotools takes their areas as those of the masks,
    and AP by size differs from the printed AP.
    """

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        loop = getattr(runner, f'{mode}_loop')
        for metric in getattr(getattr(loop, 'evaluator', None), 'metrics', ()):  # not in every foreign loop
            prefix = getattr(metric, 'outfile_prefix', None)
            path = Path(f'{prefix}.segm.json')
            if prefix is not None and is_main_process() and path.is_file():
                objects = json.loads(path.read_bytes())
                for item in objects:
                    item.pop('bbox', None)
                write_whole(path, json.dumps(objects).encode())
