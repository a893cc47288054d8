"""`accelerate`, `restore` and `AccelerateHook`: any built model with a Swin, computed by the compiled library."""

from importlib import import_module
from typing import Any, Optional, TypeVar

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import nn

from ...checks import check_type
from .maps import prepare_convolutions, restore_convolutions

Model = TypeVar('Model', bound=nn.Module)
# Layers of the toolboxes, and the files here with a subclass of the same name.
LAYER_FILES = {
    ('mmdet', 'SingleRoIExtractor'): 'roi_extractor',
    ('mmseg', 'UPerHead'): 'uper_head',
    ('mmcv', 'MultiScaleDeformableAttention'): 'deformable_attention',
}
CLASS = '_swin_backbone_class'


def accelerate(model: Model, dry_run: bool = False, precision: Optional[str] = None) -> Model:
    """Let the compiled library compute every Swin of a built model on a CPU, and the layers behind the Swin; in place.

    Each Swin layer is compared with its original: outputs and gradients. A layer that differs does not change. The log
    has a line for each Swin and kind of layer. Parameters, names, modules and hooks stay. A second call changes the
    precision alone.

    Args:
        model: with a Swin of mmdet, mmseg, mmpretrain, timm, torchvision or transformers, or with a copy of the
            official code.
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
    from ...kernels.bind.accelerate import accelerate_swin, find_swins

    check_type('model', model, nn.Module, "a torch.nn.Module (`eval` of mmdet's Swin returns None)")
    accelerate_swin(model, dry_run, precision)
    if not dry_run and all(parameter.device.type == 'cpu' for parameter in model.parameters()):
        replace_layers(model)
        prepare_convolutions(model, find_swins(model))
    return model


def replace_layers(model: nn.Module) -> None:
    """Replace layers of the toolboxes by this package's layers of the same name, in place."""
    for module in model.modules():
        kind = type(module)
        file = LAYER_FILES.get((kind.__module__.split('.')[0], kind.__name__))
        if file is not None:
            ours = getattr(import_module(f'.{file}', __package__), kind.__name__)
            if ours.__mro__[1] is kind:  # not another layer of the same name
                module.__dict__[CLASS], module.__class__ = kind, ours


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place, and return the model."""
    from ...kernels.bind.accelerate import restore_swin

    restore_swin(model)
    restore_convolutions(model)
    for module in model.modules():
        if CLASS in module.__dict__:
            module.__class__ = module.__dict__.pop(CLASS)
    return model


@HOOKS.register_module()
class AccelerateHook(Hook):
    """Calls `accelerate` on the runner's model before training, validation and test.

    In a config: `custom_hooks=[dict(type='swin_backbone.AccelerateHook')]`.

    Args:
        precision: 'int8': validation and test compute in eight bits; see `accelerate`. Training is as with None.
    """

    priority = 'VERY_HIGH'

    def __init__(self, precision: Optional[str] = None) -> None:
        self.precision = precision

    def before_run(self, runner: Any) -> None:
        """See `Hook`."""
        accelerate(runner.model, precision=self.precision)  # an error is raised before the training
        self._set(runner.model, None)

    def before_val(self, runner: Any) -> None:
        """See `Hook`."""
        self._set(runner.model, self.precision)

    def after_val(self, runner: Any) -> None:
        """See `Hook`."""
        self._set(runner.model, None)  # layers without gradients, as frozen ones, would train in eight bits

    before_test, after_test = before_val, after_val

    def _set(self, model: nn.Module, precision: Optional[str]) -> None:
        if self.precision is not None:
            from ...kernels.bind.accelerate import set_precision

            set_precision(model, precision)
