"""What this package adds beside mmengine: its classes in mmengine's registries, and operators of an mmcv without them.

`swin_backbone/__init__.py` imports this file once mmengine is imported, in the middle of an import of mmdet for
example. The modules register their classes when they are imported.
"""

from importlib import import_module

from .openmmlab import mmcv_ops

MODULES = (
    'openmmlab.registration',
    'openmmlab.layer_decay',
    'openmmlab.layers.accelerate',
    'openmmlab.mixed_precision',
    'workbench.runner.nan_guard',
)

mmcv_ops.put_in_place()  # first: an import of mmcv.ops fails without compiled operators
for module in MODULES:
    import_module(f'.{module}', __package__)
