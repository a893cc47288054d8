"""The allowed values of arguments. Each range has words for error messages and a function that checks a value.

Layout: B batch, H W height and width, C channels, T tokens.
"""

import math
import os
from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, Callable, NamedTuple, NoReturn, Optional

import torch
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.model import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS, build_from_cfg
from torch import Tensor, nn

from ..backends.choose import BACKENDS, REPLACED
from ..windows.grid import Size

DEFAULT_STRIDES = (4, 2, 2, 2)


class Range(NamedTuple):
    """The allowed values of an argument: all or some values of one type."""

    words: str
    keep: Callable[[object], Any]  # converts a value; raises TypeError for a wrong type, ValueError out of range


def read(name: str, value: object, inside: Range) -> Any:
    """Check an argument's value and return it in the form in which it is stored.

    Raises:
        TypeError: for a value of a wrong type.
        ValueError: for a value outside the range. Both messages name the argument, what it takes and what it got.
    """
    try:
        return inside.keep(value)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        reason = f': {error}' if str(error) else ''
        raise kind(f'{name} must be {inside.words}; got {value!r}{reason}') from error.__cause__


def integer(least: int, most: Optional[int] = None) -> Range:
    def keep(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError
        number = int(value)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return Range(f'an int of at least {least}' if most is None else f'an int in {least}..{most}', keep)


def number(words: str, is_inside: Callable[[float], bool]) -> Range:
    """The finite numbers for which `is_inside` is true."""

    def keep(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        value = float(value)
        if not math.isfinite(value) or not is_inside(value):
            raise ValueError
        return value

    return Range(words, keep)


def choice(*values: str) -> Range:
    def keep(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        if value not in values:
            raise ValueError
        return value

    return Range(f'one of {list(values)}', keep)


def or_none(inside: Range) -> Range:
    return Range(f'{inside.words}, or None', lambda value: None if value is None else inside.keep(value))


def one_a_stage(inside: Range, num_stages: int) -> Range:
    def keep(value: object) -> tuple[Any, ...]:
        values = _entries(value)
        if len(values) != num_stages:
            raise ValueError
        return tuple(inside.keep(entry) for entry in values)

    return Range(f'a sequence, for each of the {num_stages} stages {inside.words}', keep)


def mlp_ratio(channels: int) -> Range:
    """The finite numbers that give an MLP on this many channels at least one hidden channel."""
    return number(f'a number of at least 1/{channels}', lambda ratio: 1 <= ratio * channels < math.inf)


def windows(num_stages: int) -> Range:
    """One window for all stages, or one for each stage. Two ints always mean (height, width), even with two stages."""
    each = one_a_stage(PAIR, num_stages)

    def keep(value: object) -> tuple[Size, ...]:
        is_one = _is_int(value) or (len(_entries(value)) in (1, 2) and all(map(_is_int, _entries(value))))
        return (PAIR.keep(value),) * num_stages if is_one else each.keep(value)

    return Range(f'{PAIR.words}; or a sequence of such, one for each of the {num_stages} stages', keep)


def pretrained_windows(num_stages: int) -> Range:
    """The window that each stage was pre-trained with. 0 becomes None, which means the stage's own window."""

    def keep_one(value: object) -> Optional[Size]:
        return None if _is_int(value) and value == 0 else PAIR.keep(value)

    each = one_a_stage(Range(f'0, or {PAIR.words}', keep_one), num_stages)
    return Range(f'{each.words}; or None', lambda value: (None,) * num_stages if value is None else each.keep(value))


def strides(num_stages: int) -> Range:
    """One stride for each stage. With fewer than four stages, the default is cut to its first entries."""
    each = one_a_stage(POSITIVE, num_stages)

    def keep(value: object) -> tuple[int, ...]:
        values = _positives(value)
        strides: tuple[int, ...] = each.keep(values[:num_stages] if values == DEFAULT_STRIDES else values)
        return strides

    return Range(f'{each.words}; {DEFAULT_STRIDES} serves fewer stages too', keep)


def stages(num_stages: int) -> Range:
    """Some of the stages, sorted in ascending order, which is the order of the outputs."""
    one = integer(0, num_stages - 1)

    def keep(value: object) -> tuple[int, ...]:
        values = tuple(one.keep(entry) for entry in _entries(value))
        if not values or len(set(values)) < len(values):
            raise ValueError
        return tuple(sorted(values))

    return Range(f'a sequence of different stages among 0..{num_stages - 1}', keep)


def activation(channels: int) -> Range:
    """A config of an activation. The activation is built and tried on a small tensor."""

    def keep(cfg: object) -> object:
        layer = _build(cfg, lambda: build_activation_layer(cfg))
        x_TC = torch.zeros(2, channels, device=_device_of(layer))
        if _run(layer, x_TC).shape != x_TC.shape:
            raise ValueError('its output has another shape than its input')
        return cfg

    return Range('a dict(type=...) of an activation', keep)


def norm(channels: int) -> Range:
    """A config of a norm that normalises each token by itself.

    Every norm but nn.LayerNorm is tried on a small tensor, on torch's default device.
    """

    def keep(cfg: object) -> object:
        layer = _build(cfg, lambda: build_norm_layer(cfg, channels)[1])
        if type(layer) is nn.LayerNorm:
            read('its eps', layer.eps, EPS)
            return cfg
        x_TC = torch.arange(12.0 * channels, device=_device_of(layer)).sin().view(12, channels)
        x_BHWC = (x_TC * torch.arange(1.0, 13, device=x_TC.device)[:, None]).view(2, 2, 3, channels)  # all differ
        y_BHWC, y_TC, first_BHWC = (_run(layer, x) for x in (x_BHWC, x_BHWC.flatten(0, 2), x_BHWC[:1, :1, :1]))
        if y_BHWC.shape != x_BHWC.shape:
            raise ValueError('its output has another shape than its input')
        has_numbers = type(y_BHWC) is Tensor and y_BHWC.device.type != 'meta'
        if has_numbers and not (_is_near(y_BHWC.flatten(0, 2), y_TC) and _is_near(y_BHWC[:1, :1, :1], first_BHWC)):
            raise ValueError('what it makes of a token depends on other tokens')
        return cfg

    return Range('a dict(type=...) of a norm over the last dimension', keep)


def _build(cfg: object, build: Callable[[], Any]) -> Any:
    if not isinstance(cfg, dict):
        raise TypeError
    if 'type' not in cfg:
        raise ValueError('there is no type')
    device = torch.empty(0).device
    try:
        with torch.device('cpu' if device.type == 'meta' else device):  # so that it can be tried
            return build()
    except Exception as error:  # a user's layer may raise anything
        _refuse('it cannot be built', error)


def _run(layer: nn.Module, x: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            y: Tensor = layer(x)
            return y
    except Exception as error:  # a user's layer may raise anything
        _refuse(f'it does not take a tensor {tuple(x.shape)}', error)


def _refuse(what: str, error: Exception) -> NoReturn:
    raise ValueError(f'{what}, {type(error).__name__}: {error}') from error


def _device_of(layer: nn.Module) -> torch.device:
    return next((parameter.device for parameter in layer.parameters()), torch.empty(0).device)


def _is_near(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-2, atol=1e-2)  # the default dtype may be a half


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value:
        raise ValueError
    return value


def _pair(value: object) -> Size:
    values = (value,) if _is_int(value) else _entries(value)
    if len(values) not in (1, 2):
        raise ValueError
    return POSITIVE.keep(values[0]), POSITIVE.keep(values[-1])


def _positives(value: object) -> tuple[int, ...]:
    values = tuple(POSITIVE.keep(entry) for entry in _entries(value))
    if not values:
        raise ValueError
    return values


def _backend(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    if value not in BACKENDS:
        raise ValueError(REPLACED.get(value, ''))
    return value


def _init_cfg(value: object) -> Any:
    cfgs = [value] if isinstance(value, dict) else list(_entries(value))
    for cfg in cfgs:
        if not isinstance(cfg, dict):
            raise TypeError
        _initializer({key: option for key, option in cfg.items() if key != 'override'})
        overrides = cfg.get('override') or []
        for override in overrides if isinstance(overrides, list) else [overrides]:
            if not isinstance(override, dict) or not isinstance(override.get('name'), str):
                raise ValueError('an override must be a dict with the name of a layer, or a list of these')
            if len(override) > 1:  # if not, it is initialised as all others are
                _initializer({key: option for key, option in override.items() if key != 'name'})
    return value if isinstance(value, dict) else cfgs


def _initializer(cfg: dict[str, Any]) -> None:
    """Refuse what mmengine cannot build."""
    _build(cfg, partial(build_from_cfg, cfg, WEIGHT_INITIALIZERS))
    if cfg['type'] in ('Pretrained', PretrainedInit):
        checkpoint, prefix = cfg['checkpoint'], cfg.get('prefix')
        if not isinstance(checkpoint, (str, os.PathLike)) or not str(checkpoint).strip():
            raise ValueError('a Pretrained must have the path or URL of its checkpoint')
        if prefix is not None and not isinstance(prefix, str):
            raise ValueError('the prefix of a Pretrained must be a str')


def _entries(value: object) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError
    return tuple(value)


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


POSITIVE = integer(1)
PAIR = Range('an int of at least 1 or a pair (height, width) of these', _pair)
POSITIVES = Range('a sequence of ints of at least 1, one a stage', _positives)
EPS = number('a finite number of at least 0', lambda eps: eps >= 0)
RATE = number('a probability, at least 0 and less than 1', lambda rate: 0 <= rate < 1)
FLAG = Range('a bool', _flag)
TEXT = Range('a path or URL', _text)
BACKEND = Range(f'one of {list(BACKENDS)}', _backend)
INIT_CFG = Range('a dict(type=...) or a list of these', _init_cfg)
