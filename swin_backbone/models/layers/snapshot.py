"""Whether a layer's modules are those it was built with.

Backends take weights alone, and repeat what a layer's modules compute. A module that a user has changed must be called.
"""

from typing import Optional, TypeVar

from mmcv.cnn.bricks import Linear
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import ModuleList, Sequential
from torch import nn

from ...compat import has_global_hooks

# The layers whose computation backends repeat. Types must match exactly: a subclass may compute something else.
_known = {nn.LayerNorm, nn.Linear, Linear, nn.Conv1d, nn.Conv2d, nn.Dropout, nn.Identity, nn.ReLU, nn.Sequential}
_known |= {DropPath, FFN, Sequential, ModuleList}

Layer = TypeVar('Layer', bound=type[nn.Module])
Signature = tuple[type[nn.Module], bool]


def known_layer(layer: Layer) -> Layer:
    """Decorate a class of this package whose `forward` backends repeat."""
    _known.add(layer)
    return layer


def take_snapshot(module: nn.Module, activations: tuple[nn.Module, ...] = ()) -> None:
    """Record which layers a module consists of; called at the end of its `__init__`.

    Args:
        activations: modules that backends call, so they may be of any type, but without parameters.
    """
    layers = _layers(module, most=len(list(module.modules())))
    known = all(type(layer) in _known or layer in activations for layer in layers)
    known = known and not any(True for activation in activations for _ in activation.parameters())
    module._snapshot = [_signature(layer) for layer in layers] if known else None  # type: ignore[assignment]


def is_unmodified(module: nn.Module) -> bool:
    """Whether a module still has the layers it was built with, and no hook or replaced `forward` changes them.

    A user may have replaced a layer (another norm, LoRA, quantization, a parametrization, FSDP around a layer), given a
    layer a `forward` of its own (accelerate's offloading), or added a hook. Then the modules themselves must be called.
    """
    snapshot: Optional[list[Signature]] = module._snapshot  # type: ignore[assignment]
    if snapshot is None or has_global_hooks():
        return False
    layers = _layers(module, most=len(snapshot) + 1)
    return [_signature(layer) for layer in layers] == snapshot and not any(map(is_changed, layers))


def is_changed(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks, or a `forward` of its own."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ) or ('forward' in module.__dict__)


def _layers(module: nn.Module, most: int) -> list[nn.Module]:
    """The layers inside, to so many. Every forward asks, and `modules()` of torch takes four times as long."""
    layers = [layer for layer in module._modules.values() if layer is not None]
    index = 0
    while index < len(layers) < most:
        layers += [layer for layer in layers[index]._modules.values() if layer is not None]
        index += 1
    return layers


def _signature(layer: nn.Module) -> Signature:
    """Its type and whether it has no bias. These must not change."""
    bias = layer._parameters.get('bias')  # of what a wrapper has made of it, a plain attribute
    return type(layer), (layer.__dict__.get('bias') if bias is None else bias) is None
