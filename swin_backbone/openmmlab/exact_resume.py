"""What a checkpoint keeps beside mmengine's, so that a resumed training gives the bits of an uninterrupted one."""

from typing import Any, Optional

from mmengine.dist import gather_object, get_rank
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor, nn

from .loops import PlacedEpochLoop, PlacedIterLoop


def resume_state(runner) -> Optional[dict[str, Any]]:
    """Where the data is and what it is drawn by; called on all ranks, and complete on the first.

    Random numbers are a function of the run's seed, which mmengine keeps, and of the iteration (seeds.py).

    Returns:
        None for a loop that is not of this package, else a dict:
            sampler_seed: by which the order is drawn, or None.
            batches_gone: batches that the order has behind it on each rank, of this epoch or, by iterations, of all.
            batch_size, ranks: what `batches_gone` counts in.
            gradients: of each rank, by parameter, in the middle of an accumulation; else None.
    """
    loop = runner.train_loop
    if not isinstance(loop, (PlacedEpochLoop, PlacedIterLoop)):
        return None
    return dict(
        sampler_seed=getattr(_sampler(runner), 'seed', None),
        batches_gone=loop.batches_gone,
        batch_size=getattr(loop.dataloader.batch_sampler, 'batch_size', None),
        ranks=runner.world_size,
        gradients=_gather_gradients(runner),
    )


def restore(runner, meta: dict) -> None:
    """Place a resumed runner's loop where a checkpoint's was, and say what is not as it was."""
    loop = runner.train_loop
    if not isinstance(loop, (PlacedEpochLoop, PlacedIterLoop)):
        runner.logger.info(f'{type(loop).__name__} is a loop of its own kind: what it draws is not resumed exactly.')
        return
    state = meta.get('exact_resume')
    if state is None:
        loop.batches_gone = loop.iter if isinstance(loop, PlacedIterLoop) else 0
        runner.logger.warning(
            'The checkpoint does not say where its data was, being of an earlier version or another tool: training '
            'goes on from its weights and optimizer, with random numbers of its own.'
        )
        return
    if state['sampler_seed'] is not None and hasattr(_sampler(runner), 'seed'):
        _sampler(runner).seed = state['sampler_seed']
    before = (state['batch_size'], state['ranks'])
    now = (getattr(loop.dataloader.batch_sampler, 'batch_size', None), runner.world_size)
    loop.batches_gone = state['batches_gone']
    if before != now:
        if isinstance(before[0], int) and isinstance(now[0], int):
            loop.batches_gone = state['batches_gone'] * before[0] * before[1] // (now[0] * now[1])
        runner.logger.warning(
            f'The checkpoint is of {before[1]} processes with {before[0]} images a step each, and this training has '
            f'{now[1]} with {now[0]}: it goes on, not as it would have without the stop.'
        )
    elif state['gradients'] is not None:
        gradients = state['gradients'][get_rank()]
        for name, parameter in _unwrapped(runner.model).named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)
        runner.logger.info('The gradients that were being accumulated are restored.')


def _gather_gradients(runner) -> Optional[list[dict[str, Tensor]]]:
    wrapper = runner.optim_wrapper
    if not isinstance(wrapper, OptimWrapper) or isinstance(wrapper, OptimWrapperDict) or wrapper.should_update():
        return None
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in _unwrapped(runner.model).named_parameters()
        if parameter.grad is not None
    }
    return gather_object(gradients)


def _unwrapped(model: Any) -> nn.Module:
    return model.module if is_model_wrapper(model) else model


def _sampler(runner) -> Any:
    batches = runner.train_loop.dataloader.batch_sampler
    return getattr(batches, 'sampler', None)
