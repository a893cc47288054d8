"""Skip the steps of a training whose loss or gradient is not finite. One such step would make every weight NaN."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple, Optional

import torch
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import Hook
from mmengine.hooks.hook import DATA_BATCH
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from ....checks import list_first
from ....openmmlab.errors import TrainingStopped

MAX_NAMED = 16  # images in a warning


class SteppedBatch(NamedTuple):
    """A batch of the current step."""

    outputs: dict[str, Tensor]  # loss terms and other logged numbers; only a skipped step reads them
    images: list[str]


@HOOKS.register_module()
class NonFiniteGuardHook(Hook):
    """Skip a step with an infinite or NaN loss or gradient norm, on all ranks, and log the images of the step.

    The weights, the state of the optimizer and the buffers in checkpoints (statistics of batch norm) stay as before the
    step. With gradient accumulation, a step is all its batches. mmengine's AmpOptimWrapper skips overflows itself and
    lowers its loss scale; its skipped steps count here once the scale is 1. Several optimizers (`OptimWrapperDict`) are
    not watched.

    Every training of this package has the hook. `default_hooks=dict(finite=None)` in a config turns it off.

    Args:
        max_in_a_row: number of skipped steps in a row that ends the training.

    Raises:
        TrainingStopped: after `max_in_a_row` skipped steps.
    """

    priority = 'HIGH'  # before the hooks that use the results of a step: EMA, checkpoints

    def __init__(self, max_in_a_row: int = 10) -> None:
        self.max_in_a_row = max_in_a_row
        self.skipped_in_a_row = 0
        self.wrapper: Optional[OptimWrapper] = None  # the wrapper of a running training
        self.step: Optional[Callable[..., None]] = None  # the wrapper's own method
        self.problem: Optional[str] = None  # why the step is skipped: 'loss' or 'gradient norm'
        # Of the current step:
        self.loss_flags: list[Tensor] = []  # whether the loss of a batch is finite
        self.batches: list[SteppedBatch] = []
        self.buffers: list[tuple[Tensor, Tensor]] = []  # the buffers in checkpoints, and copies from before the step

    def before_train(self, runner: Runner) -> None:
        wrapper = runner.optim_wrapper
        if isinstance(wrapper, OptimWrapperDict):
            runner.logger.warning('NonFiniteGuardHook does not watch several optimizers.')
            return
        update_params = wrapper.update_params
        step = wrapper.step

        def update_params_and_watch(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self.loss_flags.append(torch.isfinite(loss.detach()).all())
            update_params(loss, *args, **kwargs)

        @wraps(step)  # keeps the attribute that schedules put on `step`
        def step_if_finite(**kwargs: Any) -> None:
            loss_is_finite, gradient_is_finite = _reduce_flags(self.loss_flags, _flag_gradients(wrapper))
            self.loss_flags.clear()
            if loss_is_finite and gradient_is_finite:
                self.skipped_in_a_row = 0
                step(**kwargs)
            elif not loss_is_finite:
                self.problem = 'loss'
            else:
                scaler: Any = getattr(wrapper, 'loss_scaler', None)  # only AmpOptimWrapper has one
                scales = scaler is not None and scaler.is_enabled()
                # The scaler answers an overflow by a lower scale, if the scale is dynamic and above 1
                is_answered = scales and wrapper._scale_update_param is None and scaler.get_scale() > 1
                self.problem = None if is_answered else 'gradient norm'
                if scales:  # the wrapper skips the step too, and adapts its scale
                    step(**kwargs)

        wrapper.update_params = update_params_and_watch
        wrapper.step = step_if_finite
        self.wrapper = wrapper
        self.step = step

    def after_train(self, runner: Runner) -> None:
        if self.wrapper is not None:
            del self.wrapper.update_params
            self.wrapper.step = self.step  # mmengine's schedules have put it there
            self.wrapper = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None) -> None:
        if self.wrapper is not None and not self.batches:
            self.buffers = [(buffer, buffer.clone()) for buffer in _iter_saved_buffers(runner.model)]

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None, outputs: Optional[dict[str, Any]] = None
    ) -> None:
        if self.wrapper is None:
            return
        tensors = {name: torch.as_tensor(value).detach() for name, value in (outputs or {}).items()}
        numbers = {name: value for name, value in tensors.items() if value.numel() == 1}
        self.batches.append(SteppedBatch(numbers, list(_iter_image_names(data_batch))))
        if not self.wrapper.should_update():
            return
        batches, self.batches = self.batches, []
        problem, self.problem = self.problem, None
        if problem is None:
            return
        for buffer, before in self.buffers:
            buffer.copy_(before)
        self.skipped_in_a_row += 1
        description = _describe(problem, batches)
        runner.logger.warning(
            f'Iteration {runner.iter + 1}: step skipped, number {self.skipped_in_a_row} in a row. {description}'
        )
        if self.skipped_in_a_row >= self.max_in_a_row:
            # Late: checkpoint_hook imports mmcv, whose import imports this file.
            from ...resume.checkpoint_hook import describe_last_checkpoint, find_checkpoint_hook

            hook = find_checkpoint_hook(runner)
            if hook is not None:
                hook.save_now(runner, runner.iter + 1)
            raise TrainingStopped(
                f'training stops at iteration {runner.iter + 1}, after {self.skipped_in_a_row} skipped steps in a row. '
                f'{description} {describe_last_checkpoint(hook)}'
            )


def _reduce_flags(*lists: list[Tensor]) -> list[bool]:
    """Return for each list whether all its flags are true on all ranks. A call waits once for the device."""
    device = next((flag.device for flags in lists for flag in flags), None)
    true = torch.ones((), dtype=torch.int32, device=device)
    are_true = torch.stack([torch.stack([true, *(flag.to(true) for flag in flags)]).min() for flags in lists])
    all_reduce(are_true, op='min')
    return are_true.bool().tolist()


def _flag_gradients(wrapper: OptimWrapper) -> list[Tensor]:
    """Return whether the norm of all gradients is finite, as one flag; without gradients, no flag."""
    gradients = [
        parameter.grad
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
        if parameter.grad is not None
    ]
    norms = torch._foreach_norm(gradients) if gradients else []  # as in clip_grad_norm_
    if not norms:
        return []
    return [torch.isfinite(torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).norm())]


def _iter_saved_buffers(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def _describe(problem: str, batches: list[SteppedBatch]) -> str:
    """Return a sentence for each rank, with its loss terms that are not finite and the images of their batches."""
    terms_of_batches = [
        [f'{name} {value.item():g}' for name, value in batch.outputs.items() if name != 'loss' and not value.isfinite()]
        for batch in batches
    ]
    images = [
        name for batch, terms in zip(batches, terms_of_batches) if terms or problem != 'loss' for name in batch.images
    ]
    ranks = all_gather_object((sorted({term for terms in terms_of_batches for term in terms}), images))
    sentences = []
    for rank, (terms, names) in enumerate(ranks):
        if terms or problem != 'loss':
            where = f' on rank {rank}' if len(ranks) > 1 else ''
            sentences.append(
                f'Not finite{where}: {", ".join(terms) or problem}; images: '
                f'{list_first(names, MAX_NAMED) or "without names"}.'
            )
    return ' '.join(sentences)


def _iter_image_names(batch: Any) -> Iterator[str]:
    if isinstance(batch, BaseDataElement):
        name = batch.get('img_path') or batch.get('img_id')
        if name is not None:
            yield str(name)
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from _iter_image_names(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _iter_image_names(value)
