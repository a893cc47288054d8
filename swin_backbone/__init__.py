"""Swin Transformer backbones for the OpenMMLab toolboxes. Importing this package registers them."""

import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

from .version import __version__


def _is_for_info() -> bool:
    """Return whether this is `python -m swin_backbone` or `swin-backbone`, whose `info` works without mmengine.

    `sys.argv[0]` is '-m' while Python imports this file for `python -m`.
    """
    if sys.argv[:1] == ['-m']:
        return 'swin_backbone' in getattr(sys, 'orig_argv', ['swin_backbone'])
    return os.path.basename(sys.argv[0] if sys.argv else '').startswith('swin-backbone')


try:
    import mmengine  # noqa: F401

    from .mmcv_ops import put_in_place

    put_in_place()  # first: an import of mmcv.ops fails without compiled operators
    with warnings.catch_warnings():  # mmcv warns about missing operators, and no layer here needs them
        warnings.filterwarnings('ignore', message='Fail to import', category=UserWarning)
        import mmcv.cnn.bricks.transformer  # noqa: F401
except ImportError as error:
    if not _is_for_info():
        raise ImportError(
            f'swin_backbone needs mmengine and mmcv, and {error.name} is not installed. In a checkout, where torch is '
            "installed: one of `pip install -e '.[onedl]'` (the maintained OneDL forks), "
            "`PIP_CONSTRAINT=constraints/openmmlab.txt pip install -e '.[openmmlab]'` (OpenMMLab's own releases) and "
            "`pip install -e '.[lite]'` (no detector or segmentor); never two of them. `make install` makes an "
            'environment with all of it.'
        ) from error
else:
    with suppress(*[ImportError] if _is_for_info() else []):
        from .api import Model, load
        from .archs import ARCHS, ARCHS_MLP, ARCHS_V2
        from .backends.native.library import library_path
        from .checkpoints import convert_checkpoint, load_checkpoint
        from .compat import give_numba_a_cache, import_torchvision
        from .models import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
        from .openmmlab.config.files import register_prefixes
        from .openmmlab.layers.accelerate import AccelerateHook, accelerate, restore
        from .openmmlab.optim.amp import mixed_precision
        from .openmmlab.optim.layer_decay import SwinLayerDecayOptimizerConstructor
        from .openmmlab.optim.nan_guard import NonFiniteGuardHook
        from .openmmlab.swap.replace import swap_backbone

        register_prefixes()
        give_numba_a_cache()  # before mmdet
        import_torchvision()  # before timm and mmpretrain, whose import fails beside a torchvision for CUDA

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
    'library_path',
    'load',
    'load_checkpoint',
    'mixed_precision',
    'restore',
    'swap_backbone',
]


def __getattr__(name: str) -> Any:
    """Import layers of mmdet's and mmseg's models at first use. Configs name them 'swin_backbone.UPerHead'."""
    modules = {'SingleRoIExtractor': 'roi_extractor', 'UPerHead': 'uper_head'}
    if name not in modules:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.openmmlab.layers.{modules[name]}', __name__), name)
