"""`AccelerateHook`, and what `accelerate` does to layers of the toolboxes behind a Swin."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Optional

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import nn

from ...acceleration import EXTENSIONS, Extension, accelerate
from .memory_format import prepare_convolutions

# Layers of the toolboxes, and the files here with a subclass of the same name.
LAYER_FILES = {
    ('mmdet', 'SingleRoIExtractor'): 'roi_extractor',
    ('mmseg', 'UPerHead'): 'uper_head',
    ('mmcv', 'MultiScaleDeformableAttention'): 'deformable_attention',
}


def replace_layers(model: nn.Module) -> None:
    """Replace layers of the toolboxes by this package's layers of the same name, in place."""
    for module in model.modules():
        cls = type(module)
        file = LAYER_FILES.get((cls.__module__.split('.')[0], cls.__name__))
        if file is not None:
            replacement = getattr(import_module(f'.{file}', __package__), cls.__name__)
            if replacement.__mro__[1] is cls:  # not another layer of the same name
                module.__class__ = replacement


def prepare_layers(model: nn.Module, swins: Sequence[nn.Module]) -> None:
    """Prepare the layers behind the Swins of a model, in place; see `acceleration.Extension`."""
    replace_layers(model)
    prepare_convolutions(model, swins)


def restore_layers(model: nn.Module) -> None:
    """Undo `prepare_layers`, in place."""
    for module in model.modules():
        if type(module).__module__.startswith(f'{__package__}.'):  # in place of the class that it extends
            module.__class__ = type(module).__mro__[1]


EXTENSIONS.append(Extension(prepare_layers, restore_layers))


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
            from ...kernels.foreign.accelerate import set_precision

            set_precision(model, precision)
