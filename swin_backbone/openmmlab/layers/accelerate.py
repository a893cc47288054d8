"""`accelerate`, `restore` and `AccelerateHook`: any built model with a Swin, computed by the compiled library."""

from importlib import import_module
from typing import Any, TypeVar

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from ...acceleration import accelerate_swin, find_swins, restore_swin
from .conv3x3 import Conv3x3
from .maps import prepare_convolutions

Model = TypeVar('Model', bound=nn.Module)
# Layers of the toolboxes, and the files here with a subclass of the same name.
FILES = {('mmdet', 'SingleRoIExtractor'): 'roi_extractor', ('mmseg', 'UPerHead'): 'uper_head'}
CLASS, STRIDES = '_swin_backbone_class', '_swin_backbone_strides'


def accelerate(model: Model, dry_run: bool = False) -> Model:
    """Let the compiled library compute every Swin of a built model on a CPU, and the layers behind the Swin; in place.

    Each Swin layer is compared with its original: outputs and gradients. A layer that differs stays as it was. One line
    for each Swin and kind of layer is logged. Parameters, names, modules and hooks stay. A second call changes nothing.

    Args:
        model: with the Swin of mmdet or mmseg, or a copy of the official detection code. Other Swins stay as they are.
        dry_run: whether the model stays as it is, and the lines are logged alone.

    Returns:
        `model`.
    """
    accelerate_swin(model, dry_run)
    swins = [] if dry_run else find_swins(model)
    if not swins or any(parameter.device.type != 'cpu' for parameter in model.parameters()):
        return model
    for module in model.modules():
        kind = type(module)
        file = FILES.get((kind.__module__.split('.')[0], kind.__name__))
        if file is not None:
            ours = getattr(import_module(f'.{file}', __package__), kind.__name__)
            if ours.__mro__[1] is kind:
                module.__dict__[CLASS], module.__class__ = kind, ours
    contiguous = [module for module in model.modules() if _is_contiguous_convolution(module)]
    prepare_convolutions(model, swins)
    for module in contiguous:
        if not _is_contiguous_convolution(module) or isinstance(module, Conv3x3):
            module.__dict__[STRIDES] = True
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place, and return the model."""
    restore_swin(model)
    module: Any
    for module in model.modules():
        if CLASS in module.__dict__:
            module.__class__ = module.__dict__.pop(CLASS)
        if module.__dict__.pop(STRIDES, False):
            weight: Any = module.weight
            weight.data = weight.data.contiguous()
            if type(module) is Conv3x3:
                setattr(module, '__class__', nn.Conv2d)  # noqa: B010 - mypy knows the class
                del module.caches
    return model


def _is_contiguous_convolution(module: nn.Module) -> bool:
    is_convolution = type(module) is nn.Conv2d or isinstance(module, nn.ConvTranspose2d)
    return is_convolution and isinstance(module.weight, torch.Tensor) and module.weight.is_contiguous()


@HOOKS.register_module()
class AccelerateHook(Hook):
    """Calls `accelerate` on the runner's model before training, validation and test.

    In a config: `custom_hooks=[dict(type='swin_backbone.AccelerateHook')]`.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """See `Hook`."""
        accelerate(runner.model)

    def before_val(self, runner: Runner) -> None:
        """See `Hook`."""
        accelerate(runner.model)

    def before_test(self, runner: Runner) -> None:
        """See `Hook`."""
        accelerate(runner.model)
