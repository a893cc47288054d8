"""Resume a training with bit-identical results."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from mmengine.dist import gather_object, get_rank
from mmengine.hooks import EMAHook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import Tensor, nn

from ...checkpoints import CheckpointError
from .completeness import dataset_meta_of
from .loops import PlacedEpochLoop, PlacedIterLoop
from .names import keep_own_names
from .optimizer_state import describe, fit_optimizer, is_alike
from .schedule import rates, wind

ANEW = 'to start anew from its weights, leave out --resume and set load_from'
TRAINING_PARTS = ('meta', 'message_hub', 'state_dict')  # dicts in every checkpoint of a training
MAX_NAMES = 64  # pictures whose names identify a data set


def check_resumable(checkpoint: Mapping[str, Any], name: str) -> None:
    """Check that a checkpoint is of a training.

    Raises:
        CheckpointError: if the checkpoint has only weights, or no position.
    """
    if not all(isinstance(checkpoint.get(part), dict) for part in TRAINING_PARTS):
        raise CheckpointError(
            f'checkpoint {name!r} holds weights, and not the state of a training run: it cannot be resumed; {ANEW}'
        )
    for key in ('epoch', 'iter'):
        value = checkpoint['meta'].get(key)
        if type(value) is not int or value < 0:
            raise _not_resumable(name, f'meta.{key} takes a whole number from 0, got {describe(value)}')


def _not_resumable(name: str, reason: str) -> CheckpointError:
    return CheckpointError(f'checkpoint {name!r} cannot be resumed: {reason}; {ANEW}')


def resume_state(runner: Runner) -> Optional[dict[str, Any]]:
    """Return the position in the data. All ranks call this function, and the first rank gets the complete result.

    Random numbers are a function of the iteration and of the run's seed, which mmengine saves (seeds.py).

    Returns:
        None for a foreign loop; for other loops a dict:
            sampler_seed: seed of the order, or None.
            batches_done: finished batches of each rank: of this epoch or, in a loop of iterations, of the training.
            by_epoch, batch_size, ranks: units of `batches_done`.
            batches_a_step: number of accumulated batches.
            images, pictures: number of images in the data, and a hash of some file names.
            gradients: by parameter, for each rank, in the middle of an accumulation; None after a step.
    """
    loop = runner.train_loop
    if not isinstance(loop, (PlacedEpochLoop, PlacedIterLoop)):
        return None
    return dict(
        sampler_seed=getattr(_sampler(runner), 'seed', None),
        batches_done=loop.batches_done,
        **_drawn_from(runner),
        gradients=_gather_gradients(runner),
    )


def fit_to_run(runner: Runner, checkpoint: dict[str, Any], name: str) -> None:
    """Convert a checkpoint in place, so that mmengine's Runner can resume this run.

    Tensors are compared with this run's tensors, the position with this loop. Settings of the optimizer, of schedules
    and of a loss scaler come from the config. A line in the log names every change.

    Raises:
        CheckpointError: with the name of a field that does not fit.
    """
    check_resumable(checkpoint, name)
    classes = dataset_meta_of(checkpoint).get('classes')
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    if runner.param_schedulers is not None:
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
    changes: list[str] = []
    meta = checkpoint['meta']
    try:
        changes += _place(runner, meta)
        changes += _keep_seed(runner, meta)
        wind(runner, meta['epoch'], meta['iter'], checkpoint)
        saved = checkpoint.get('optimizer')
        if saved is None:
            changes.append('no moments of the optimizer, which begin anew')
        else:
            checkpoint['optimizer'] = fit_optimizer(runner.optim_wrapper, saved)
            changes += _other_rates(rates(saved), rates(checkpoint['optimizer']))
        changes += _fit_averages(runner, checkpoint)
        _fit_gradients(runner, meta.get('exact_resume') or {})
        keep_own_names(runner, checkpoint['message_hub'])
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = str(error) if type(error) is ValueError else f'a field has another structure ({error!r:.200})'
        raise _not_resumable(name, reason) from error
    checkpoint.pop('param_schedulers', None)  # `wind` has placed the schedules
    metainfo = getattr(runner.train_dataloader.dataset, 'metainfo', None)
    if classes is not None and list(classes) != list((metainfo or {}).get('classes') or ()):
        changes.append('other classes')
    meta['dataset_meta'] = metainfo  # mmengine compares dataset_meta too
    if changes:
        runner.logger.warning(f'{name} is resumed with {", ".join(changes)}: not as it would have gone on by itself.')


def restore_position(runner: Runner, meta: dict[str, Any]) -> None:
    """Place the data of a resumed runner, after `fit_to_run`."""
    loop = runner.train_loop
    if not isinstance(loop, (PlacedEpochLoop, PlacedIterLoop)):
        runner.logger.info(f'{type(loop).__name__} is a foreign loop: its random numbers are not resumed exactly.')
        return
    state = meta.get('exact_resume')
    if state is None:
        loop.batches_done = loop.iter if isinstance(loop, PlacedIterLoop) else 0
        runner.logger.warning(
            'The checkpoint has no position in the data, as of mmengine itself: training continues with the weights '
            'and the optimizer, and with other random numbers.'
        )
        return
    if state['sampler_seed'] is not None and hasattr(_sampler(runner), 'seed'):
        _sampler(runner).seed = state['sampler_seed']
    loop.batches_done = state['batches_done']
    if state['gradients'] is not None:
        gradients = state['gradients'][get_rank()]
        for name, parameter in _unwrapped(runner.model).named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)
        runner.logger.info('The gradients that were being accumulated are restored.')


def _place(runner: Runner, meta: dict[str, Any]) -> Iterator[str]:
    """Convert epoch, iteration and batches of a checkpoint to the units of this run, and yield the changes."""
    loop, state = runner.train_loop, meta.get('exact_resume')
    if not isinstance(loop, (PlacedEpochLoop, PlacedIterLoop)) or state is None:
        return
    now = _drawn_from(runner)
    for key, value in now.items():
        state.setdefault(key, value)  # absent in older checkpoints
    yield from _differences(state, now)
    if any(state[key] != value for key, value in now.items()):
        if any(state[key] != now[key] for key in ('batch_size', 'ranks', 'batches_a_step')):
            state['gradients'] = None
        if state['by_epoch'] != now['by_epoch']:
            meta['epoch'], state['batches_done'] = 0, meta['iter']
        if isinstance(state['batch_size'], int) and isinstance(now['batch_size'], int):
            before = state['batches_done'] * state['batch_size'] * state['ranks']
            state['batches_done'] = before // (now['batch_size'] * now['ranks'])
        if isinstance(loop, PlacedEpochLoop):  # as if all epochs had the length of this epoch
            length = len(loop.dataloader)
            if state['by_epoch']:
                state['batches_done'] = min(state['batches_done'], length)
            else:
                meta['epoch'], state['batches_done'] = divmod(state['batches_done'], length)
            meta['iter'] = meta['epoch'] * length + state['batches_done']


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    if before['by_epoch'] != now['by_epoch']:
        yield 'epochs instead of iterations' if now['by_epoch'] else 'iterations instead of epochs'
    if before['batches_a_step'] != now['batches_a_step']:
        yield f'{now["batches_a_step"]} batches a step instead of {before["batches_a_step"]}'
    if before['batch_size'] != now['batch_size']:
        yield f'{now["batch_size"]} images a batch instead of {before["batch_size"]}'
    if before['ranks'] != now['ranks']:
        yield f'{now["ranks"]} processes instead of {before["ranks"]}'
    if before['images'] != now['images']:
        yield f'other data, of {now["images"]} images instead of {before["images"]}'
    elif before['pictures'] != now['pictures']:
        yield 'other data, of pictures with other names'


def _drawn_from(runner: Runner) -> dict[str, Any]:
    """Return the units of a position in the data, and marks of the data."""
    loader = runner.train_loop.dataloader
    return dict(
        by_epoch=isinstance(runner.train_loop, PlacedEpochLoop),
        batches_a_step=getattr(runner.optim_wrapper, '_accumulative_counts', None),
        batch_size=getattr(loader.batch_sampler, 'batch_size', None),
        ranks=runner.world_size,
        images=len(loader.dataset) if hasattr(loader.dataset, '__len__') else None,
        pictures=_hash_of_names(loader.dataset),
    )


def _hash_of_names(dataset: Any) -> str:
    """Hash the file names of some pictures, without folders, because data may move."""
    from ..data.guard import base_datasets  # imported here, because a lite installation lacks its imports

    names = []
    for base in base_datasets(dataset):
        step = math.ceil(len(base) / MAX_NAMES) or 1
        names += [Path(str(base.get_data_info(index).get('img_path', ''))).name for index in range(0, len(base), step)]
    return hashlib.sha256('\0'.join(names).encode(errors='surrogateescape')).hexdigest()[:16]


def _keep_seed(runner: Runner, meta: dict[str, Any]) -> Iterator[str]:
    """Use the seed of the checkpoint."""
    seed = runner._randomness_cfg.get('seed')
    if meta.get('seed') is not None and seed is not None and seed != meta['seed']:
        yield f'its seed {meta["seed"]} and not {seed}'
        runner._randomness_cfg['seed'] = None  # prevents a second line of mmengine


def _other_rates(before: list[Any], now: list[Any]) -> Iterator[str]:
    for then, rate in zip(before, now):
        is_number = isinstance(then, (int, float)) and not isinstance(then, bool)
        if not is_number or not math.isclose(then, rate, rel_tol=1e-6):
            yield f'the learning rate {rate:.3g} of the config instead of {describe(then)}'
            return


def _fit_averages(runner: Runner, checkpoint: dict[str, Any]) -> Iterator[str]:
    """Compare the moving average of an EMAHook, and yield the changes. The hook saves averages as the weights."""
    saved = checkpoint.get('ema_state_dict')
    hook = next((hook for hook in runner.hooks if isinstance(hook, EMAHook)), None)
    if saved is None:
        if hook is not None:
            yield 'no moving average, which begins anew'
        return
    trained = {f'module.{name}': value for name, value in _unwrapped(runner.model).state_dict().items()}
    own = hook.ema_model.state_dict() if hook is not None else trained
    for key, value in own.items():
        if key.startswith('module.') and key.removeprefix('module.') not in checkpoint['state_dict']:
            raise ValueError(f'state_dict does not have {key.removeprefix("module.")}')
        _check_alike(saved.get(key), value, f'ema_state_dict.{key}')
    checkpoint['ema_state_dict'] = {key: saved[key] for key in own}
    if hook is None:
        trained = checkpoint.pop('ema_state_dict')
        checkpoint['state_dict'] = {key.removeprefix('module.'): value for key, value in trained.items()}
        yield 'the moving average left out'


def _fit_gradients(runner: Runner, state: dict[str, Any]) -> None:
    if state.get('gradients') is None:
        return
    if len(state['gradients']) != runner.world_size:
        raise ValueError(f'it has gradients of {len(state["gradients"])} processes, this run has {runner.world_size}')
    for name, parameter in _unwrapped(runner.model).named_parameters():
        gradient = state['gradients'][get_rank()].get(name)
        if gradient is not None:
            _check_alike(gradient, parameter, f'gradients.{name}')


def _gather_gradients(runner: Runner) -> Optional[list[dict[str, Tensor]]]:
    wrapper = runner.optim_wrapper
    if not isinstance(wrapper, OptimWrapper) or isinstance(wrapper, OptimWrapperDict) or wrapper.should_update():
        return None
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in _unwrapped(runner.model).named_parameters()
        if parameter.grad is not None
    }
    gathered: Optional[list[dict[str, Tensor]]] = gather_object(gradients)
    return gathered


def _unwrapped(model: Any) -> nn.Module:
    inner: nn.Module = model.module if is_model_wrapper(model) else model
    return inner


def _sampler(runner: Runner) -> Any:
    batches = runner.train_loop.dataloader.batch_sampler
    return getattr(batches, 'sampler', None)


def _check_alike(value: Any, own: Tensor, where: str) -> None:
    if not is_alike(value, own):
        raise ValueError(f'{where} takes {describe(own)}, got {describe(value)}')
