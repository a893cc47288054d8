"""The names of the package. An import takes seconds, and registers the backbones in mmengine's registry."""

import warnings
from pathlib import Path

try:
    import mmengine  # noqa: F401

    from .openmmlab import mmcv_ops, panoptic

    mmcv_ops.put_in_place()  # first: an import of mmcv.ops fails without compiled operators
    panoptic.put_in_place()
    with warnings.catch_warnings():  # mmcv warns about missing operators, and no layer here needs them
        warnings.filterwarnings('ignore', message='Fail to import', category=UserWarning)
        import mmcv.cnn.bricks.transformer  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'swin_backbone needs mmengine and mmcv, and {error.name} is not installed. In a checkout, where torch is '
        "installed: one of `pip install -e '.[onedl]'` (the maintained OneDL forks), "
        "`PIP_CONSTRAINT=constraints/openmmlab.txt pip install -e '.[openmmlab]'` (OpenMMLab's own releases) and "
        "`pip install -e '.[lite]'` (no detector or segmentor); never two of them. `make install` makes an "
        'environment with all of it.'
    ) from error

from .acceleration import accelerate, restore
from .archs import ARCHS, ARCHS_MLP, ARCHS_V2
from .checkpoints import convert_checkpoint, load_checkpoint
from .compat import give_numba_a_cache, import_torchvision
from .models import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from .openmmlab import registration  # noqa: F401
from .openmmlab.config_files import register_prefixes
from .openmmlab.layer_decay import SwinLayerDecayOptimizerConstructor
from .openmmlab.layers.accelerate import AccelerateHook
from .openmmlab.mixed_precision import mixed_precision
from .openmmlab.swap.replace import swap_backbone
from .version import __version__
from .workbench.model import Model, load
from .workbench.runner.nan_guard import NonFiniteGuardHook

if (Path(__file__).parent / 'kernels' / '__init__.py').is_file():  # without this folder torch computes everything
    from .kernels import bind, triton  # noqa: F401 - the replacements of models' forwards

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
    'load',
    'load_checkpoint',
    'mixed_precision',
    'restore',
    'swap_backbone',
]
