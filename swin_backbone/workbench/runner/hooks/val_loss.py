"""The loss on the validation set, a metric of each validation."""

import copy
from collections import Counter
from datetime import timedelta
from typing import Any, Optional

import torch
from mmengine.dataset import Compose
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import distributed, nn
from torch.utils.data import DataLoader

from ....openmmlab.config_parts import iter_parts, type_name, walk
from ....openmmlab.errors import ConfigError, TrainingStopped, describe_error
from ...configs.data_parts import list_dataset_configs
from ...data.datasets import iter_base_datasets
from ...data.seeds import LOSS, preserve_rng_state, seed_rng
from ...pictures.curves import VAL_ITER
from ..rank_errors import collect_error, raise_together

NUM_PICTURES = 'pictures'  # their number, beside sums of losses


class ValLossHook(Hook):
    """Add the losses on the validation set to its metrics: `val_loss`, and `val_` before the name of each term.

    `val_iter` is the iteration of the validation, since mmengine's log has only the epoch.

    A copy of the model, which shares the parameters, computes the losses without gradients. Dropout, drop path and
    batch norm are as in validation. Modules with a method `loss` are in training mode, because detectors and heads
    return other outputs then. Every validation draws the same random numbers, and the training's generators keep
    their state. The mean over the set weighs a batch by its pictures. The batch size is that of the training; 1 for
    mmseg, whose pictures keep their shapes. A model that cannot compute the losses gets one warning, and no losses, as
    does a data set whose config has no pipeline.

    In a run of several processes, an error of one ends the losses of all. A process that another one waits for longer
    than `timeout`, as in a loss where processes share a number, ends the training.
    """

    timeout = timedelta(minutes=10)
    group: Any = None  # group of all processes, for their errors; None in a run of one
    loader: Optional[DataLoader[Any]] = None
    num_pictures = 0  # that this process sees
    priority = 'HIGHEST'  # before the hooks that take metrics, and before EMAHook, which takes the averages away

    def before_train(self, runner: Runner) -> None:
        """Build the loader. Raises ConfigError without validation."""
        if runner.val_loop is None:
            raise ConfigError('--val-loss needs val_dataloader, and the config has none')
        loader = runner.val_dataloader
        dataset = copy.deepcopy(loader.dataset)
        for base, (where, cfg) in zip(iter_base_datasets(dataset), list_dataset_configs(runner.cfg, 'val')):
            if not cfg.get('pipeline'):
                self._give_up(runner, f'{where} has no pipeline in the config')
                return
            base.pipeline = Compose(make_loss_pipeline(cfg['pipeline'], runner.cfg.train_dataloader.dataset))
            base.data_guard.install(base)
        is_mmseg = runner.cfg.get('default_scope') == 'mmseg'
        batch_size = 1 if is_mmseg else runner.cfg.train_dataloader.get('batch_size', 1)
        indices = list(range(runner.rank, len(dataset), runner.world_size))
        batches = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
        num_batches = len(range(0, len(dataset), batch_size * runner.world_size))  # the first process has the most
        self.num_pictures = len(indices)
        if runner.world_size > 1:  # a group of its own, because a loss may wait in the group of the training
            self.group = distributed.new_group(backend='gloo', timeout=self.timeout)
        self.loader = DataLoader(
            dataset,
            batch_sampler=batches + [[0]] * (num_batches - len(batches)),  # a further batch does not count
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
        )

    def _give_up(self, runner: Runner, reason: str) -> None:
        runner.logger.warning(f'--val-loss has no effect: {reason}')
        self.loader = None

    def after_val_epoch(self, runner: Runner, metrics: Optional[dict[str, float]] = None) -> None:
        if metrics is None or self.loader is None:
            return
        try:
            with preserve_rng_state(), torch.no_grad():
                seed_rng(runner.seed, LOSS, runner.rank)
                sums = self._sum_losses(runner)
        except TrainingStopped:
            raise
        except Exception as error:  # stops no training
            self._give_up(runner, describe_error(error))
            return
        totals: Counter[str] = Counter()
        for sums_of_process in all_gather_object(sums):
            totals.update(sums_of_process)
        num_pictures = totals.pop(NUM_PICTURES, 1)
        means = {f'val_{name}': total / num_pictures for name, total in totals.items()}
        for name, value in {**means, VAL_ITER: runner.iter}.items() if means else ():
            metrics[name] = value
            runner.message_hub.log_scalars.pop(f'val/{name}', None)  # mmengine would log a mean with earlier values

    def _sum_losses(self, runner: Runner) -> Counter[str]:
        """Return the number of pictures of this process, and the sum of each loss over them.

        Processes may wait for each other in the losses, as detectors that share a number of objects do. So all have an
        equal number of batches, and begin each together, once all have loaded theirs.

        Raises:
            ValueError: in all processes, if one cannot load a batch or compute its losses.
            TrainingStopped: if another process does not come to the next batch.
        """
        errors: list[str] = []
        sums: Counter[str] = Counter()
        batches = iter(self.loader or ())
        num_left = self.num_pictures
        with collect_error(errors):
            model = _copy_for_losses(runner.model)
        for _ in range(len(self.loader or ())):
            with collect_error(errors):
                data = model.data_preprocessor(next(batches), True)
            self._raise_together(runner, errors)
            with collect_error(errors):
                with runner.optim_wrapper.optim_context(model):
                    losses = model(**data, mode='loss')
                _, values = model.parse_losses(losses)
                num_pictures = min(len(data['inputs']), num_left)
                num_left -= num_pictures
                means = {name: float(value) for name, value in values.items() if 'loss' in name}
                sums.update({NUM_PICTURES: num_pictures, **{name: mean * num_pictures for name, mean in means.items()}})
        self._raise_together(runner, errors)
        return sums

    def _raise_together(self, runner: Runner, errors: list[str]) -> None:
        try:
            raise_together(errors, self.group)
        except RuntimeError as error:  # torch.distributed raises it
            reason = f'it cannot compute --val-loss ({errors[0]}), and ' if errors else 'in --val-loss '
            raise TrainingStopped(
                f'rank {runner.rank} stops, because {reason}another process has ended or waits for it; --resume goes '
                'on from the last checkpoint'
            ) from error


def _copy_for_losses(model: Any) -> Any:
    """Return a copy of a model that shares its parameters: see `ValLossHook`."""
    model = model.module if is_model_wrapper(model) else model
    held = [value for module in model.modules() for _, value in walk(vars(module)) if isinstance(value, torch.Tensor)]
    shared = [value for value in held if isinstance(value, nn.Parameter) or not value.is_leaf]  # CondInst keeps maps
    model = copy.deepcopy(model, {id(value): value for value in shared}).eval()
    for module in model.modules():
        module.training = hasattr(type(module), 'loss')
    model.data_preprocessor.batch_augments = None
    return model


def make_loss_pipeline(val: list[dict[str, Any]], train: Any) -> list[dict[str, Any]]:
    """Return the pipeline of a validation with the labels of a training.

    Toolboxes load labels for validation after Resize, in the size of the file. Here they are loaded before, as in
    training, and the training's last step packs them.

    Args:
        train: data set of the training, with wrappers.
    """
    steps = [step for _, step in iter_parts(train, 'dataset')]
    loading_steps = [step for index, step in enumerate(steps) if _loads_labels(step) and step not in steps[:index]]
    packs = [step for step in steps if type_name(step).startswith('Pack')]
    middle = [step for step in val[1:-1] if not _loads_labels(step)]
    return [val[0], *loading_steps, *middle, packs[0] if packs else val[-1]]


def _loads_labels(step: dict[str, Any]) -> bool:
    name = type_name(step)
    return name == 'ConvertBoxType' or (name.startswith('Load') and name.endswith('Annotations'))
