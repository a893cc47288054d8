"""Whether the functions of `ops`, which see weights alone, compute what the modules of a layer would."""

from typing import TypeVar

from mmcv.cnn.bricks import Linear
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import ModuleList, Sequential
from torch import nn

from ..compat import has_global_hooks

# What the functions write out, to the exact type: a subclass may compute something else.
_known = {nn.LayerNorm, nn.Linear, Linear, nn.Conv1d, nn.Conv2d, nn.Dropout, nn.Identity, nn.ReLU, nn.Sequential}
_known |= {DropPath, FFN, Sequential, ModuleList}

Layer = TypeVar('Layer', bound=type[nn.Module])


def known_layer(layer: Layer) -> Layer:
    """Decorate a class of this package whose `forward` the functions write out."""
    _known.add(layer)
    return layer


def remember_layers(module: nn.Module, activations: tuple[nn.Module, ...] = ()) -> None:
    """Note of which layers a module is built, at the end of its `__init__`.

    Args:
        activations: modules that the functions call, whatever they are, unless they have parameters.
    """
    layers = list(module.modules())[1:]
    known = all(type(layer) in _known or layer in activations for layer in layers)
    known = known and not any(True for activation in activations for _ in activation.parameters())
    module._built_of = _signatures(module) if known else None  # type: ignore[assignment]


def is_as_built(module: nn.Module) -> bool:
    """Whether a module is made of the very layers it was built of, and nobody watches or replaces what they do.

    Somebody may have put another layer in one's place (a norm of another kind, LoRA, quantization, a parametrization,
    FSDP around a layer), given one a `forward` of its own (accelerate's offloading), or a hook. Then the modules
    themselves must be called.
    """
    return (
        module._built_of == _signatures(module)
        and not has_global_hooks()
        and not any(has_hooks(layer) or 'forward' in layer.__dict__ for layer in list(module.modules())[1:])
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to see, or change, what goes through a module."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _signatures(module: nn.Module) -> tuple:
    """Of each layer inside, what must not change: its type, and whether it has a bias."""
    return tuple((type(layer), getattr(layer, 'bias', None) is None) for layer in list(module.modules())[1:])
