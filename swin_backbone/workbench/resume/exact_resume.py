"""Resume a training with bit-identical results."""

import math
from collections.abc import Iterator
from typing import Any, Optional

from mmengine.dist import gather_object, get_rank
from mmengine.hooks import EarlyStoppingHook, EMAHook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner
from torch import Tensor, nn

from ...checkpoints.errors import CheckpointError
from ...openmmlab.errors import describe_error
from ..weights.completeness import as_mapping, read_dataset_meta
from .loops import ResumableEpochLoop, ResumableIterLoop, ResumableLoop
from .optimizer_state import load_optimizer, step_schedulers

START_ANEW_HINT = 'to start anew from its weights, leave out --resume and set load_from'
TRAINING_KEYS = ('meta', 'message_hub', 'state_dict')  # dicts in every checkpoint of a training


def require_training_state(checkpoint: Any, name: str) -> None:
    """Check that a checkpoint is of a training.

    Raises:
        CheckpointError: if the checkpoint has only weights.
    """
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(key), dict) for key in TRAINING_KEYS):
        raise CheckpointError(
            f'checkpoint {name!r} holds weights, and not the state of a training run: it cannot be resumed; '
            f'{START_ANEW_HINT}'
        )


def collect_position(runner: Runner) -> Optional[dict[str, Any]]:
    """Return the position in the data. All ranks call this function, and the first rank gets the complete result.

    Random numbers are a function of the iteration and of the run's seed, which mmengine saves (seeds.py).

    Returns:
        None for a foreign loop; for other loops a dict:
            sampler_seed: seed of the order, or None.
            batches_done: batches that each rank has finished: in this epoch or, in a loop of iterations, since the
                start of the training.
            by_epoch, batch_size, ranks: units of `batches_done`.
            batches_a_step: number of accumulated batches.
            images: number of images in the data.
            validated_iter: iteration of the last finished validation, or -1.
            stopping: best score and validations without a better one, of each EarlyStoppingHook.
            gradients: by parameter, for each rank, in the middle of an accumulation; None after a step.
    """
    loop = runner.train_loop
    if not isinstance(loop, ResumableLoop):
        return None
    return dict(
        sampler_seed=getattr(_find_sampler(runner), 'seed', None),
        batches_done=loop.batches_done,
        validated_iter=loop.validated_iter,
        stopping=[(hook.best_score, hook.wait_count) for hook in _list_stopping_hooks(runner)],
        **_find_units(runner),
        gradients=_gather_gradients(runner),
    )


def restore_training_state(runner: Runner, checkpoint: dict[str, Any], name: str) -> None:
    """Restore the position in the data, and convert a checkpoint in place to what mmengine's Runner resumes.

    Settings of the optimizer, of schedules and of a loss scaler come from the config; mmengine itself resumes several
    optimizers (`OptimWrapperDict`). A line in the log names what differs from the training of the checkpoint.

    Raises:
        CheckpointError: if the optimizer's state does not fit, or the state is damaged.
    """
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    is_single = not isinstance(runner.optim_wrapper, OptimWrapperDict)
    if is_single and runner.param_schedulers is not None:
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
    meta = checkpoint['meta']
    metainfo = getattr(runner.train_dataloader.dataset, 'metainfo', None)  # builds the data outside of `try`
    try:
        changes = _restore_position(runner, meta)
        if is_single:
            changes += _restore_optimizer(runner, checkpoint)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = describe_error(error)
        raise CheckpointError(f'checkpoint {name!r} cannot be resumed: {reason}; {START_ANEW_HINT}') from error
    averages = checkpoint.get('ema_state_dict')
    if averages is not None and not any(isinstance(hook, EMAHook) for hook in runner.hooks):
        # EMAHook saves averages as the weights, and the trained weights as the averages
        trained = {key.removeprefix('module.'): value for key, value in averages.items() if key.startswith('module.')}
        checkpoint['state_dict'].update(trained)
        changes.append('the moving average left out')
    classes = read_dataset_meta(checkpoint).get('classes')
    if classes is not None and list(classes) != list(as_mapping(metainfo).get('classes') or ()):
        changes.append('other classes')
    meta['dataset_meta'] = metainfo  # mmengine compares dataset_meta by its bytes
    if changes:
        runner.logger.warning(f'{name} is resumed with {", ".join(changes)}: results differ from an uninterrupted one.')


def _restore_position(runner: Runner, meta: dict[str, Any]) -> list[str]:
    """Let the data of this run begin after the batches of a checkpoint, and return what differs, in words.

    Epoch, iteration and batches are converted to the units of this run.
    """
    loop = runner.train_loop
    if not isinstance(loop, ResumableLoop):
        runner.logger.info(f'{type(loop).__name__} is a foreign loop: its random numbers are not resumed exactly.')
        return []
    position = meta.get('exact_resume')
    if position is None:
        loop.batches_done = meta['iter'] if isinstance(loop, ResumableIterLoop) else 0
        runner.logger.warning(
            'The checkpoint has no position in the data, as of mmengine itself: training continues with the weights '
            'and the optimizer, and with other random numbers.'
        )
        return []
    units = _find_units(runner)
    saved_units = {key: position[key] for key in units}
    changes = list(_describe_differences(saved_units, units))
    batches = position['batches_done']
    if changes:
        if saved_units['by_epoch'] != units['by_epoch']:
            batches = meta['iter']
            meta['epoch'] = 0
        if isinstance(saved_units['batch_size'], int) and isinstance(units['batch_size'], int):
            images = batches * saved_units['batch_size'] * saved_units['ranks']
            batches = images // (units['batch_size'] * units['ranks'])
        if isinstance(loop, ResumableEpochLoop):  # as if all epochs had the length of this epoch
            length = len(loop.dataloader)
            if saved_units['by_epoch']:
                batches = min(batches, length)
            else:
                meta['epoch'], batches = divmod(batches, length)
            meta['iter'] = meta['epoch'] * length + batches
    loop.batches_done = batches
    loop.validated_iter = position['validated_iter']
    for hook, stopping in zip(_list_stopping_hooks(runner), position['stopping']):
        hook.best_score, hook.wait_count = stopping
    if position['sampler_seed'] is not None and hasattr(_find_sampler(runner), 'seed'):
        _find_sampler(runner).seed = position['sampler_seed']
    if position['gradients'] is not None and not changes:
        gradients = position['gradients'][get_rank()]
        for name, parameter in _unwrap(runner.model).named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)
        runner.logger.info('The gradients that were being accumulated are restored.')
    return changes


def _describe_differences(saved: dict[str, Any], current: dict[str, Any]) -> Iterator[str]:
    if saved['by_epoch'] != current['by_epoch']:
        yield 'epochs instead of iterations' if current['by_epoch'] else 'iterations instead of epochs'
    for key, what in (
        ('batches_a_step', '{} batches a step'),
        ('batch_size', '{} images a batch'),
        ('ranks', '{} processes'),
        ('images', 'other data, of {} images'),
    ):
        if saved[key] != current[key]:
            yield f'{what.format(current[key])} instead of {saved[key]}'


def _find_units(runner: Runner) -> dict[str, Any]:
    """Return the units in which a position in the data is counted."""
    loader = runner.train_loop.dataloader
    return dict(
        by_epoch=isinstance(runner.train_loop, ResumableEpochLoop),
        batches_a_step=getattr(runner.optim_wrapper, '_accumulative_counts', None),
        batch_size=getattr(loader.batch_sampler, 'batch_size', None),
        ranks=runner.world_size,
        images=len(loader.dataset) if hasattr(loader.dataset, '__len__') else None,
    )


def _restore_optimizer(runner: Runner, checkpoint: dict[str, Any]) -> list[str]:
    """Load the optimizer's state, step the schedulers to the position, and return what differs, in words."""
    step_schedulers(runner, checkpoint['meta']['epoch'], checkpoint['meta']['iter'], checkpoint)
    checkpoint.pop('param_schedulers', None)  # mmengine would load their saved states
    saved = checkpoint.pop('optimizer', None)
    if saved is None:
        return ['no moments of the optimizer, which begin anew']
    load_optimizer(runner.optim_wrapper, saved)
    for saved_group, group in zip(saved['param_groups'], runner.optim_wrapper.param_groups):
        if not math.isclose(saved_group['lr'], group['lr'], rel_tol=1e-6):
            return [f'the learning rate {group["lr"]:.3g} of the config instead of {saved_group["lr"]:.3g}']
    return []


def _gather_gradients(runner: Runner) -> Optional[list[dict[str, Tensor]]]:
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapperDict) or wrapper.should_update():
        return None
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in _unwrap(runner.model).named_parameters()
        if parameter.grad is not None
    }
    gathered: Optional[list[dict[str, Tensor]]] = gather_object(gradients)
    return gathered


def _unwrap(model: Any) -> nn.Module:
    inner: nn.Module = model.module if is_model_wrapper(model) else model
    return inner


def _list_stopping_hooks(runner: Runner) -> list[EarlyStoppingHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]


def _find_sampler(runner: Runner) -> Any:
    return getattr(runner.train_loop.dataloader.batch_sampler, 'sampler', None)
