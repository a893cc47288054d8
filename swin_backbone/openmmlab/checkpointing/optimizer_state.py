"""An optimizer's state: its moments come from a checkpoint, its settings from the config."""

import copy
import math
from collections import defaultdict
from typing import Any, NamedTuple, Optional

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor, nn
from torch.optim import Optimizer

from .fields import COUNT, DICT, Field, check, is_count, shown

SCALER = {
    'scale': Field('a positive number', lambda value: isinstance(value, float) and 0 < value < float('inf')),
    '_growth_tracker': COUNT,
}
SIGNS = ((1, -1), (-1, 1), (1, 1))  # of weights and gradients


class Kept(NamedTuple):
    """What an optimizer keeps of a parameter under a name."""

    sample: Any  # a tensor without memory, or a plain value
    device: Optional[torch.device]
    is_never_negative: bool  # a count of steps, a sum of squares


def fit_optimizer(wrapper: Any, saved: Any, where: str = 'optimizer') -> dict[str, Any]:
    """What to load into an optimizer wrapper that was just built: a checkpoint's moments, and its own settings.

    A moment is compared with what this optimizer makes of a parameter: shape, dtype, finite numbers, and none below 0
    where it makes none. It is copied into memory of the layout that the optimizer makes.

    Args:
        wrapper: mmengine's OptimWrapper or OptimWrapperDict.
        saved: its `state_dict` from a checkpoint, of which nothing is believed.

    Raises:
        ValueError: if they do not fit, naming the first place where.
    """
    if isinstance(wrapper, OptimWrapperDict):
        check(saved, DICT, where)
        if set(saved) != set(wrapper.keys()):
            raise ValueError(f'{where} is of {sorted(saved)}, and this training has {sorted(wrapper.keys())}')
        return {name: fit_optimizer(inner, saved[name], f'{where}.{name}') for name, inner in wrapper.items()}
    own: dict[str, Any] = wrapper.state_dict()
    own['state'] = _fit_moments(wrapper, own['param_groups'], saved, where)
    if isinstance(own.get('loss_scaler'), dict) and saved.get('loss_scaler') is not None:
        check(saved['loss_scaler'], SCALER, f'{where}.loss_scaler')
        own['loss_scaler'].update({name: saved['loss_scaler'][name] for name in SCALER})
    return own


def _fit_moments(wrapper: OptimWrapper, own_groups: list[dict[str, Any]], saved: Any, where: str) -> dict[str, Any]:
    check(saved, DICT, where)
    numbers = _numbers(saved.get('param_groups'), f'{where}.param_groups')
    state = saved.get('state')
    if not isinstance(state, dict):
        raise ValueError(f'{where}.state takes a dict, got {shown(state)}')
    sizes, own_sizes = [list(map(len, groups)) for groups in (numbers, [group['params'] for group in own_groups])]
    if sizes != own_sizes:
        raise ValueError(
            f'{where} is of {sum(sizes)} parameters in {len(sizes)} groups, and this training has {sum(own_sizes)} in '
            f'{len(own_sizes)}: its model or its optimizer is another'
        )
    moments = {}
    known: dict[tuple[Any, ...], Optional[dict[str, Kept]]] = {}
    optimizer = wrapper.optimizer
    for group, own_group, theirs in zip(optimizer.param_groups, own_groups, numbers):
        settings = repr([(name, value) for name, value in group.items() if name not in ('params', 'param_names')])
        for parameter, own_number, number in zip(group['params'], own_group['params'], theirs):
            entry = state.get(number)
            place = f'{where}.state[{number}]'
            if entry is not None and not isinstance(entry, dict):
                raise ValueError(f'{place} takes a dict, got {shown(entry)}')
            entry = {name: value for name, value in (entry or {}).items() if value is not None}
            if not entry:
                continue  # of a parameter that had no gradient
            kind = (parameter.shape, parameter.stride(), parameter.dtype, parameter.device, settings)
            if kind not in known:
                known[kind] = _kept_of(optimizer, group, parameter)
            moments[own_number] = _fit_entry(entry, known[kind], place)
    return moments


def _numbers(groups: Any, where: str) -> list[list[int]]:
    """The numbers of the parameters in each group of a file."""
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, dict) for group in groups):
        raise ValueError(f'{where} takes a list of dicts, got {shown(groups)}')
    numbers = [group.get('params') for group in groups]
    if not all(isinstance(group, (list, tuple)) and all(map(is_count, group)) for group in numbers):
        raise ValueError(f'{where} takes the numbers of parameters, got other things')
    flat = [number for group in numbers for number in group]
    if len(set(flat)) != len(flat):
        raise ValueError(f'{where} has a parameter twice')
    return numbers


@torch.enable_grad()
def _kept_of(optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> Optional[dict[str, Kept]]:
    """What an optimizer keeps of a parameter after a step, found by stepping with others like it.

    None of an optimizer that needs more than gradients for a step, or does it with more than this parameter.
    """
    tried: list[dict[str, Any]] = []
    for weight, gradient in SIGNS:
        like = nn.Parameter(torch.full_like(parameter, weight))
        like.grad = torch.full_like(parameter, gradient)
        probe = copy.copy(optimizer)
        probe.param_groups = [dict(group, params=[like])]
        probe.state = defaultdict(
            dict, {like: copy.deepcopy(optimizer.state.get(parameter, {}))}
        )  # Adagrad's begins so
        try:
            probe.step()
        except Exception:  # whatever an optimizer raises that is not made for this
            return None
        tried.append(probe.state[like])
    return {
        name: Kept(
            value.to('meta') if isinstance(value, Tensor) else value,
            value.device if isinstance(value, Tensor) else None,
            all(bool(torch.as_tensor(one[name]).ge(0).all()) for one in tried if _is_numeric(one[name])),
        )
        for name, value in tried[0].items()
    }


def _is_numeric(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and not value.is_complex())


def _fit_entry(entry: dict[str, Any], kept: Optional[dict[str, Kept]], where: str) -> dict[str, Any]:
    if kept is None:
        return {name: _plain(value, f'{where}.{name}') for name, value in entry.items()}
    missing = [name for name in kept if name not in entry and kept[name].sample is not None]
    if missing:
        raise ValueError(
            f'{where} has {", ".join(map(str, entry))}, and this optimizer keeps {", ".join(kept)}: another optimizer '
            'made it'
        )
    return {name: _fit_value(entry[name], one, f'{where}.{name}') for name, one in kept.items() if name in entry}


def _fit_value(value: Any, kept: Kept, where: str) -> Any:
    sample = kept.sample
    if isinstance(sample, Tensor) and sample.ndim == 0 and (type(value) is float or is_count(value)):  # of older torch
        value = torch.tensor(value, dtype=sample.dtype)
    if not is_alike(value, sample):
        raise ValueError(f'{where} takes {shown(sample)}, got {shown(value)}')
    _check_numbers(value, kept.is_never_negative, where)
    if not isinstance(value, Tensor):
        return value
    return torch.empty_like(sample, device=kept.device).copy_(value)


def is_alike(value: Any, own: Any) -> bool:
    """Whether a value is of the type of another, and a tensor of its shape, dtype and layout."""
    if not isinstance(own, Tensor):
        return type(value) is type(own)
    return isinstance(value, Tensor) and (value.shape, value.dtype, value.layout) == (own.shape, own.dtype, own.layout)


def _plain(value: Any, where: str) -> Any:
    """A value of an optimizer that is not known."""
    _check_numbers(value, False, where)
    return value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value


def _check_numbers(value: Any, is_never_negative: bool, where: str) -> None:
    if not _is_numeric(value):
        return
    is_tensor = isinstance(value, Tensor)
    if not (value.isfinite().all() if is_tensor else math.isfinite(value)):
        raise ValueError(f'{where} is not finite (NaN or infinite)')
    if is_never_negative and not (value.ge(0).all() if is_tensor else value >= 0):
        raise ValueError(f'{where} takes no numbers below 0')
