"""What this package adds beside mmengine and mmcv: classes in registries, and operators of an mmcv without them.

Each addition waits for the import of the part that it adds to, and imports nothing more of mmengine than that.
"""

from functools import partial
from importlib import import_module

from .after_import import call_after_import

# Modules that register classes when they are imported, by the module whose import they wait for
MODULES = {
    'mmengine': ('openmmlab.registration',),
    'mmengine.optim': ('openmmlab.layer_decay',),
    'mmengine.runner': ('openmmlab.layers.accelerate', 'openmmlab.mixed_precision', 'workbench.runner.nan_guard'),
}


def add_after_imports() -> None:
    """Add the classes and operators of packages that are imported, and the others once their package is."""
    for name, modules in MODULES.items():
        for module in modules:
            call_after_import(name, partial(import_module, f'.{module}', __package__))
    call_after_import('mmcv', _add_operators)


def _add_operators() -> None:
    from .openmmlab import mmcv_ops

    mmcv_ops.put_in_place()  # before an import of mmcv.ops, which fails without compiled operators
