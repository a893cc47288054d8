"""The state of a resumed optimizer: moments from the checkpoint, settings from the config."""

import copy
from collections import defaultdict
from typing import Any, Optional

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor, nn
from torch.optim import Optimizer


def fit_optimizer(wrapper: Any, saved: Any, where: str = 'optimizer') -> dict[str, Any]:
    """Return a state for a freshly built optimizer wrapper: the moments of a checkpoint and the wrapper's own settings.

    Each moment is compared in name, shape and dtype with a moment of this optimizer after one step. Moments are copied,
    because a file may share memory between moments.

    Args:
        wrapper: mmengine's OptimWrapper or OptimWrapperDict.
        saved: the `state_dict` of such a wrapper, from a checkpoint.

    Raises:
        ValueError, TypeError, AttributeError, KeyError: if they do not fit.
    """
    if isinstance(wrapper, OptimWrapperDict):
        if set(saved) != set(wrapper.keys()):
            raise ValueError(f'{where} is of {sorted(saved)}, and this training has {sorted(wrapper.keys())}')
        return {name: fit_optimizer(inner, saved[name], f'{where}.{name}') for name, inner in wrapper.items()}
    own: dict[str, Any] = wrapper.state_dict()
    own['state'] = _fit_moments(wrapper, own['param_groups'], saved, where)
    if isinstance(own.get('loss_scaler'), dict) and saved.get('loss_scaler') is not None:
        own['loss_scaler'].update({name: saved['loss_scaler'][name] for name in ('scale', '_growth_tracker')})
    return own


def is_alike(value: Any, own: Any) -> bool:
    """Return whether a value has the type of another, and a tensor the same shape, dtype and layout."""
    if not isinstance(own, Tensor):
        return type(value) is type(own)
    return isinstance(value, Tensor) and (value.shape, value.dtype, value.layout) == (own.shape, own.dtype, own.layout)


def describe(value: Any) -> str:
    """Describe a value in a few words, for a sentence."""
    if isinstance(value, Tensor):
        return f'a tensor of {value.dtype} and shape {tuple(value.shape)}'
    return f'{value!r:.60}'


def _fit_moments(wrapper: OptimWrapper, own_groups: list[dict[str, Any]], saved: Any, where: str) -> dict[str, Any]:
    numbers = [group['params'] for group in saved['param_groups']]
    sizes, own_sizes = [list(map(len, groups)) for groups in (numbers, [group['params'] for group in own_groups])]
    if sizes != own_sizes:
        raise ValueError(
            f'{where} is of {sum(sizes)} parameters in {len(sizes)} groups, and this training has {sum(own_sizes)} in '
            f'{len(own_sizes)}: model or optimizer differ'
        )
    moments = {}
    samples: dict[tuple[Any, ...], Optional[dict[str, Any]]] = {}
    for index, (group, own_group) in enumerate(zip(wrapper.optimizer.param_groups, own_groups)):
        for parameter, own_number, number in zip(group['params'], own_group['params'], numbers[index]):
            entry = {name: value for name, value in (saved['state'].get(number) or {}).items() if value is not None}
            if not entry:
                continue  # the parameter had no gradient
            kind = (index, parameter.shape, parameter.stride(), parameter.dtype, parameter.device)
            if kind not in samples:
                samples[kind] = _moments_of_a_step(wrapper.optimizer, group, parameter)
            moments[own_number] = _fit_entry(entry, samples[kind], f'{where}.state[{number}]')
    return moments


@torch.enable_grad()
def _moments_of_a_step(
    optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> Optional[dict[str, Any]]:
    """Return the moments of a copied optimizer after one step of a parameter of zeros.

    The result is None for an optimizer whose step needs more than a gradient, as LBFGS.
    """
    probe = copy.copy(optimizer)
    zeros = nn.Parameter(torch.zeros_like(parameter))
    zeros.grad = torch.zeros_like(parameter)
    probe.param_groups = [dict(group, params=[zeros])]
    # Adagrad has moments before the first step
    probe.state = defaultdict(dict, {zeros: copy.deepcopy(optimizer.state.get(parameter, {}))})
    try:
        type(probe).step(probe)  # the class's method: a scheduler replaces the method of the object
    except Exception:  # optimizers raise errors of any kind
        return None
    moments: dict[str, Any] = probe.state[zeros]
    return moments


def _fit_entry(entry: dict[str, Any], samples: Optional[dict[str, Any]], where: str) -> dict[str, Any]:
    if samples is None:
        return {name: value.clone() if isinstance(value, Tensor) else value for name, value in entry.items()}
    if any(name not in entry and sample is not None for name, sample in samples.items()):
        raise ValueError(
            f'{where} has {", ".join(map(str, entry))}, and this optimizer keeps {", ".join(samples)}: another '
            'optimizer made it'
        )
    return {
        name: _fit_value(entry[name], sample, f'{where}.{name}') for name, sample in samples.items() if name in entry
    }


def _fit_value(value: Any, sample: Any, where: str) -> Any:
    if isinstance(sample, Tensor) and sample.ndim == 0 and isinstance(value, (int, float)):  # of older torch
        value = torch.tensor(value, dtype=sample.dtype)
    if not is_alike(value, sample):
        raise ValueError(f'{where} takes {describe(sample)}, got {describe(value)}')
    return torch.empty_like(sample).copy_(value) if isinstance(sample, Tensor) else value
