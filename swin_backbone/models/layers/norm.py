"""Norms and activations that a config names: LayerNorm and GELU of torch, and the types of mmcv's registry."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ...checks import check_type, refusal
from ..arguments import naming_argument

OF_MMCV = 'and with mmcv installed the types of its registry'


def build_norm(norm_cfg: Mapping[str, Any], channels: int) -> nn.Module:
    """Return a norm of the last dimension.

    Args:
        norm_cfg: `type`, 'LN' or a norm of mmcv's registry; `requires_grad`, True by default; and arguments of the
            norm, as `eps`.
        channels: of the last dimension.

    Raises:
        ImportError: for a type of mmcv's registry, if mmcv is not installed.
    """
    kind, options = _read('norm_cfg', norm_cfg)
    if kind not in ('LN', nn.LayerNorm):
        with naming_argument('norm_cfg', norm_cfg, f"type 'LN', {OF_MMCV}"):
            from mmcv.cnn import build_norm_layer
        return build_norm_layer(norm_cfg, channels)[1]
    is_trained = options.pop('requires_grad', True)
    return nn.LayerNorm(channels, **options).requires_grad_(is_trained)


def build_activation(act_cfg: Mapping[str, Any]) -> nn.Module:
    """Return an activation.

    Args:
        act_cfg: `type`, 'GELU' or an activation of mmcv's registry, and arguments of the activation.

    Raises:
        ImportError: for a type of mmcv's registry, if mmcv is not installed.
    """
    kind, options = _read('act_cfg', act_cfg)
    if kind not in ('GELU', nn.GELU):
        with naming_argument('act_cfg', act_cfg, f"type 'GELU', {OF_MMCV}"):
            from mmcv.cnn import build_activation_layer
        return build_activation_layer(act_cfg)
    return nn.GELU(**options)


def _read(name: str, config: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the type of a layer, and the layer's other arguments."""
    options = {**check_type(name, config, Mapping, "a dict with 'type'")}
    if 'type' not in options:
        raise ValueError(refusal(name, "a dict with 'type'", config))
    return options.pop('type'), options
