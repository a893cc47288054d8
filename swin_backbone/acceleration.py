"""`accelerate` and `restore`: a built model with a Swin, computed by the compiled library."""

from collections.abc import Callable
from typing import NamedTuple, Optional, TypeVar

from torch import nn

from .checks import check_type

Module = TypeVar('Module', bound=nn.Module)


class Extension(NamedTuple):
    """What another package adds for the layers behind a Swin, on CPUs.

    Attributes:
        prepare: takes a model and its accelerated Swins of other packages, and changes layers in place.
        restore: undoes this.
    """

    prepare: Callable[[nn.Module, list[nn.Module]], None]
    restore: Callable[[nn.Module], None]


EXTENSIONS: list[Extension] = []


def accelerate(model: Module, dry_run: bool = False, precision: Optional[str] = None) -> Module:
    """Let the compiled library compute every Swin of a built model on a CPU, and the layers behind the Swin; in place.

    Each Swin layer is compared with its original: outputs and gradients. A layer that differs does not change. The log
    has a line for each Swin and kind of layer. Parameters, names, modules and hooks stay. A second call changes the
    precision alone.

    Args:
        model: with a Swin of mmdet, mmseg, mmpretrain, timm, torchvision or transformers, or with a copy of the
            official code. Layers behind the Swin are mmdet's and mmseg's.
        dry_run: log the lines, and change nothing.
        precision: 'int8': Swins, also `SwinBackbone`, multiply in eight bits where no gradient is recorded
            (docs/explanation/eight_bits.md). None: in float32, or in the dtype of autocast.

    Returns:
        `model`.

    Raises:
        TypeError: `model` is no module.
        ImportError: without the folder `swin_backbone/kernels`.
        ValueError: `precision` is neither None nor 'int8'; or 'int8' without the compiled library, for a model on a
            GPU, or without a Swin layer that the library computes.
    """
    from .kernels.foreign.accelerate import accelerate_swin, find_swins

    check_type('model', model, nn.Module, "a torch.nn.Module (`eval` of mmdet's SwinTransformer returns None)")
    accelerate_swin(model, dry_run, precision)
    if not dry_run and all(parameter.device.type == 'cpu' for parameter in model.parameters()):
        for extension in EXTENSIONS:
            extension.prepare(model, find_swins(model))
    return model


def restore(model: Module) -> Module:
    """Undo `accelerate`, in place, and return the model."""
    from .kernels.foreign.accelerate import restore_swin

    restore_swin(model)
    for extension in EXTENSIONS:
        extension.restore(model)
    return model
