"""Norms and activations that a config names: those of torch, and the types of mmcv's registry."""

from collections.abc import Callable, Mapping
from typing import Any, Optional

from torch import nn

from ...checks import check_type, refusal


def build_norm(norm_cfg: Mapping[str, Any], channels: int) -> nn.Module:
    """Return a norm of the last dimension.

    Args:
        norm_cfg: `type`, 'LN', a class or its name in torch.nn, or a name in mmcv's registry; `requires_grad`, True by
            default; and arguments of the norm, as `eps`.
        channels: of the last dimension.

    Raises:
        ImportError: for a type of mmcv's registry, if mmcv is not installed.
    """
    kind, options = _read_type('norm_cfg', norm_cfg)
    if kind is None:
        norm: nn.Module = _cnn_of_mmcv('norm_cfg', norm_cfg).build_norm_layer(norm_cfg, channels)[1]
        return norm
    is_trained = options.pop('requires_grad', True)
    return kind(channels, **{'eps': 1e-5, **options}).requires_grad_(is_trained)  # eps as mmcv's, for all norms


def build_activation(act_cfg: Mapping[str, Any]) -> nn.Module:
    """Return an activation.

    Args:
        act_cfg: `type`, a class of torch as 'GELU' or an activation of mmcv's registry, and arguments of the
            activation.

    Raises:
        ImportError: for a type of mmcv's registry, if mmcv is not installed.
    """
    kind, options = _read_type('act_cfg', act_cfg)
    if kind is None:
        activation: nn.Module = _cnn_of_mmcv('act_cfg', act_cfg).build_activation_layer(act_cfg)
        return activation
    return kind(**options)


def _read_type(name: str, config: Mapping[str, Any]) -> tuple[Optional[Callable[..., nn.Module]], dict[str, Any]]:
    """Return the class of a layer, None if torch has no class of the name, and the layer's other arguments."""
    options = {**check_type(name, config, Mapping, "a dict with 'type'")}
    if 'type' not in options:
        raise ValueError(refusal(name, "a dict with 'type'", config))
    kind = options.pop('type')
    if isinstance(kind, str):
        kind = nn.LayerNorm if kind == 'LN' else getattr(nn, kind, None)
    return kind, options


def _cnn_of_mmcv(name: str, config: Mapping[str, Any]) -> Any:
    try:
        from mmcv import cnn
    except ImportError as error:
        allowed = 'a type of torch.nn, and with mmcv installed the types of its registry'
        raise ImportError(f'{refusal(name, allowed, config)} ({error})') from error
    return cnn
