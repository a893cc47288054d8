"""Check whether the functions of `backends`, which take only weights, compute the same as the modules of a layer."""

from typing import TypeVar

from mmcv.cnn.bricks import Linear
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import ModuleList, Sequential
from torch import nn

from ...compat import has_global_hooks

# The layers whose computation the functions repeat. Types must match exactly: a subclass may compute something else.
_known = {nn.LayerNorm, nn.Linear, Linear, nn.Conv1d, nn.Conv2d, nn.Dropout, nn.Identity, nn.ReLU, nn.Sequential}
_known |= {DropPath, FFN, Sequential, ModuleList}

Layer = TypeVar('Layer', bound=type[nn.Module])


def known_layer(layer: Layer) -> Layer:
    """Decorate a class of this package whose `forward` the functions of `backends` repeat."""
    _known.add(layer)
    return layer


def remember_layers(module: nn.Module, activations: tuple[nn.Module, ...] = ()) -> None:
    """Record which layers a module consists of; called at the end of its `__init__`.

    Args:
        activations: modules that the functions of `backends` call, so they may be of any type, but without parameters.
    """
    layers = list(module.modules())[1:]
    known = all(type(layer) in _known or layer in activations for layer in layers)
    known = known and not any(True for activation in activations for _ in activation.parameters())
    module._built_of = _signatures(module) if known else None  # type: ignore[assignment]


def is_as_built(module: nn.Module) -> bool:
    """Whether a module still has the layers it was built with, and no hook or replaced `forward` changes them.

    A user may have replaced a layer (another norm, LoRA, quantization, a parametrization, FSDP around a layer), given a
    layer a `forward` of its own (accelerate's offloading), or added a hook. Then the modules themselves must be called.
    """
    return (
        module._built_of == _signatures(module)
        and not has_global_hooks()
        and not any(has_hooks(layer) or 'forward' in layer.__dict__ for layer in list(module.modules())[1:])
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _signatures(module: nn.Module) -> tuple:
    """For each layer inside: its type and whether it has no bias. These must not change."""
    return tuple((type(layer), getattr(layer, 'bias', None) is None) for layer in list(module.modules())[1:])
