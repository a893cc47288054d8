"""Checks of the configs of norms, activations and initializers: the checks build a layer and run the layer on a small
tensor.

Layout: B batch, H W height and width, C channels, T tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.registry import WEIGHT_INITIALIZERS, build_from_cfg
from torch import Tensor, nn

from ..checks import check_number, check_type, refusal


def check_activation(name: str, cfg: Any, channels: int) -> dict[str, Any]:
    """Check the config of an activation. The activation must keep the shape of the input."""
    takes = 'a dict(type=...) of an activation'
    layer = _build(name, cfg, takes, build_activation_layer)
    x_TC = torch.zeros(2, channels, device=_device_of(layer))
    _check_shape(name, cfg, takes, x_TC, _run(name, cfg, takes, layer, x_TC))
    return dict(cfg)


def check_norm(name: str, cfg: Any, channels: int) -> dict[str, Any]:
    """Check the config of a norm. The norm must normalise every token alone.

    Every norm but nn.LayerNorm is tried on a small tensor, on torch's default device.
    """
    takes = 'a dict(type=...) of a norm over the last dimension'
    layer = _build(name, cfg, takes, lambda cfg: build_norm_layer(cfg, channels)[1])
    if type(layer) is nn.LayerNorm:
        check_number(f'{name}.eps', layer.eps, least=0)
        return dict(cfg)
    x_TC = torch.arange(12.0 * channels, device=_device_of(layer)).sin().view(12, channels)
    x_BHWC = (x_TC * torch.arange(1.0, 13, device=x_TC.device)[:, None]).view(2, 2, 3, channels)  # all tokens differ
    y_BHWC, y_TC, first_BHWC = (
        _run(name, cfg, takes, layer, x) for x in (x_BHWC, x_BHWC.flatten(0, 2), x_BHWC[:1, :1, :1])
    )
    _check_shape(name, cfg, takes, x_BHWC, y_BHWC)
    has_numbers = type(y_BHWC) is Tensor and y_BHWC.device.type != 'meta'
    if has_numbers and not (_is_near(y_BHWC.flatten(0, 2), y_TC) and _is_near(y_BHWC[:1, :1, :1], first_BHWC)):
        raise ValueError(f'{refusal(name, takes, cfg)}: its output for a token depends on other tokens')
    return dict(cfg)


def check_init_cfg(name: str, value: Any) -> Any:
    """Check a config of an initializer, a list of configs, or None."""
    for cfg in value if isinstance(value, (list, tuple)) else [value]:
        if cfg is not None or value is not None:
            check_type(name, cfg, dict, 'a dict(type=...), a list of these, or None')
            options = {key: option for key, option in cfg.items() if key != 'override'}
            _build(name, options, 'a dict(type=...) of an initializer', _build_initializer)
    return list(value) if isinstance(value, tuple) else value


def _build_initializer(cfg: dict[str, Any]) -> Any:
    return build_from_cfg(cfg, WEIGHT_INITIALIZERS)


def _build(name: str, cfg: Any, takes: str, build: Callable[[dict[str, Any]], Any]) -> Any:
    check_type(name, cfg, dict, takes)
    device = torch.empty(0).device
    try:
        with torch.device('cpu' if device.type == 'meta' else device):  # a layer on meta cannot be tried
            return build(cfg)
    except Exception as error:  # a user's layer may raise anything
        raise _refused(name, cfg, takes, error) from error


def _run(name: str, cfg: Any, takes: str, layer: nn.Module, x: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            y: Tensor = layer(x)
            return y
    except Exception as error:  # a user's layer may raise anything
        raise _refused(name, cfg, takes, error, f' for a tensor {tuple(x.shape)}') from error


def _refused(name: str, cfg: Any, takes: str, error: Exception, place: str = '') -> ValueError:
    return ValueError(f'{refusal(name, takes, cfg)}{place}: {type(error).__name__}: {error}')


def _check_shape(name: str, cfg: Any, takes: str, x: Tensor, y: Tensor) -> None:
    if y.shape != x.shape:
        raise ValueError(f'{refusal(name, takes, cfg)}: its output has another shape than its input')


def _device_of(layer: nn.Module) -> torch.device:
    return next((parameter.device for parameter in layer.parameters()), torch.empty(0).device)


def _is_near(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-2, atol=1e-2)  # the default dtype may be a half
