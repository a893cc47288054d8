"""Swin Transformer backbones for torch and the OpenMMLab toolboxes.

A name is imported at its first use. The classes are registered in mmengine's registries once mmengine is imported:
before this package, with it or later. An mmcv without compiled operators finds those of
`openmmlab/mmcv_ops/`. Nothing is replaced.
"""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .after_import import call_after_import
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .acceleration import accelerate, restore
    from .archs import ARCHS, ARCHS_MLP, ARCHS_V2
    from .checkpoints import convert_checkpoint, load_checkpoint
    from .kernels.native.library import library_path as library_path
    from .models import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
    from .openmmlab.layer_decay import SwinLayerDecayOptimizerConstructor
    from .openmmlab.layers.extension import AccelerateHook
    from .openmmlab.mixed_precision import mixed_precision
    from .openmmlab.swap.backbone import swap_backbone
    from .workbench.model import Model, load
    from .workbench.runner.hooks.nan_guard import NonFiniteGuardHook

__all__ = [
    'ARCHS',
    'ARCHS_MLP',
    'ARCHS_V2',
    'AccelerateHook',
    'Model',
    'NonFiniteGuardHook',
    'SwinBackbone',
    'SwinLayerDecayOptimizerConstructor',
    'SwinMLPBackbone',
    'SwinV2Backbone',
    '__version__',
    'accelerate',
    'convert_checkpoint',
    'load',
    'load_checkpoint',
    'mixed_precision',
    'restore',
    'swap_backbone',
]

# Public names, by the module that defines them
_PUBLIC = {
    'acceleration': ('accelerate', 'restore'),
    'archs': ('ARCHS', 'ARCHS_MLP', 'ARCHS_V2'),
    'checkpoints': ('convert_checkpoint', 'load_checkpoint'),
    'kernels.native.library': ('library_path',),
    'models': ('SwinBackbone', 'SwinMLPBackbone', 'SwinV2Backbone'),
    'openmmlab.layer_decay': ('SwinLayerDecayOptimizerConstructor',),
    'openmmlab.layers.extension': ('AccelerateHook',),
    'openmmlab.mixed_precision': ('mixed_precision',),
    'openmmlab.swap.backbone': ('swap_backbone',),
    'workbench.model': ('Model', 'load'),
    'workbench.runner.hooks.nan_guard': ('NonFiniteGuardHook',),
}
# Names in configs with this package's scope, for example 'swin_backbone.UPerHead'
_IN_CONFIGS = {
    'openmmlab.layers.roi_extractor': ('SingleRoIExtractor',),
    'openmmlab.layers.uper_head': ('UPerHead',),
    'workbench.data.load_picture': ('LoadPicture',),
}
_MODULES = {name: module for module, names in {**_PUBLIC, **_IN_CONFIGS}.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(import_module(f'.{_MODULES[name]}', __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


# A part of mmengine, and a module that registers classes in it
_ADDITIONS = (
    ('mmengine', 'openmmlab.registration'),
    ('mmengine.optim', 'openmmlab.layer_decay'),
    ('mmengine.runner', 'openmmlab.layers.extension'),
    ('mmengine.runner', 'openmmlab.mixed_precision'),
    ('mmengine.runner', 'workbench.runner.hooks.nan_guard'),
)


def _add_operators() -> None:
    from .openmmlab import mmcv_ops

    mmcv_ops.put_in_place()  # before an import of mmcv.ops, which fails without compiled operators


for _trigger, _module in _ADDITIONS:
    call_after_import(_trigger, partial(import_module, f'.{_module}', __name__))
call_after_import('mmcv', _add_operators)
