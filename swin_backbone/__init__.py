"""Swin Transformer backbones for the OpenMMLab toolboxes. Importing this package registers them."""

try:
    import mmcv  # noqa: F401
    import mmengine  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'swin_backbone needs mmengine and mmcv, and {error.name} is not installed. Install one of the two '
        "stacks, never both: pip install 'swin_backbone[onedl]' (the maintained OneDL forks) or "
        "pip install 'swin_backbone[openmmlab]' (OpenMMLab's own releases); torch must be there first. "
        'The README has the commands.'
    ) from error

from .archs import ARCHS, ARCHS_V2
from .backbones import SwinBackbone, SwinV2Backbone
from .checkpoints import convert_checkpoint, load_checkpoint
from .openmmlab.config_files import register_prefixes
from .openmmlab.nan_guard import NonFiniteGuardHook
from .openmmlab.optim import SwinLayerDecayOptimizerConstructor
from .openmmlab.swap import swap_backbone
from .version import __version__

register_prefixes()

__all__ = [
    'ARCHS',
    'ARCHS_V2',
    'NonFiniteGuardHook',
    'SwinBackbone',
    'SwinLayerDecayOptimizerConstructor',
    'SwinV2Backbone',
    '__version__',
    'convert_checkpoint',
    'load_checkpoint',
    'swap_backbone',
]
