"""Whether a module is made of the layers whose arithmetic `ops` writes out."""

from mmcv.cnn.bricks import Linear
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import Sequential
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

# To the exact type: a subclass may compute something else.
PUBLISHED_LAYERS = {nn.LayerNorm, nn.Linear, Linear, nn.Dropout, nn.Identity, DropPath, Sequential, FFN}


def is_as_published(module: nn.Module, *also: type, called: tuple[nn.Module, ...] = ()) -> bool:
    """Whether the functions of `ops` compute what the modules inside `module` would.

    They do not see a layer put in another's place (a norm of another kind, LoRA, quantization, a parametrization,
    FSDP around a layer), nor hooks on one: then the modules themselves must be called.

    Args:
        also: types of this package that are known as well.
        called: modules that the functions call, whatever they are, as long as they have no parameters.
    """
    if _has_any_global_hook() or any(True for layer in called for _ in layer.parameters()):
        return False
    known = PUBLISHED_LAYERS.union(also)
    return all(
        layer is module or layer in called or (type(layer) in known and not has_hooks(layer))
        for layer in module.modules()
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to see, or change, what goes through a module."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_watched(module: nn.Module) -> bool:
    """Whether a hook sees, and may keep, what goes from layer to layer inside `module`."""
    return _has_any_global_hook() or any(has_hooks(layer) for layer in module.modules())
