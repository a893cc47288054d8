"""Memory format and dtype of the maps between the layers of a model, on a CPU."""

from collections.abc import Sequence

from torch import nn

from ...models.pyramid import SwinPyramid
from ..mmcv_ops import name_provider

# Layers of mmdet and mmseg that were tested with channels_last maps. CenterNet's head calls `view`, and fails on them.
TESTED_LAYERS = {
    *('FPN', 'RPNHead', 'StandardRoIHead', 'CascadeRoIHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead'),
    *('ConvFCBBoxHead', 'FCNMaskHead', 'RetinaHead', 'ATSSHead', 'UPerHead', 'FCNHead', 'PPM'),
    *('Mask2FormerHead', 'MaskFormerFusionHead', 'MSDeformAttnPixelDecoder', 'SinePositionalEncoding'),
    *('DeformableDetrTransformerEncoderLayer', 'Mask2FormerTransformerEncoder', 'Mask2FormerTransformerDecoder'),
    'Mask2FormerTransformerDecoderLayer',
}
ELEMENTARY_PACKAGES = ('torch', 'mmcv', 'mmengine', 'swin_backbone')
AROUND_LAYERS = ('detectors', 'segmentors', 'data_preprocessors', 'data_preprocessor', 'losses')
TORCH_LAYERS = ('MultiScaleDeformableAttention',)  # modules of mmcv.ops without an operator of mmcv on a CPU


def takes_float32_maps(module: nn.Module) -> bool:
    """Return whether a layer takes only contiguous float32 maps.

    mmcv's compiled operators refuse bfloat16 and misread channels_last memory. mmdet's RoI extractors round the corners
    of regions to the dtype of the maps.
    """
    if hasattr(module, 'roi_layers'):
        return not type(module).__module__.startswith('swin_backbone')
    cls = type(module)
    return cls.__module__.startswith('mmcv.ops') and cls.__name__ not in TORCH_LAYERS and name_provider() == 'compiled'


def prepare_convolutions(model: nn.Module, swins: Sequence[nn.Module] = ()) -> None:
    """Let the convolutions behind a Swin compute channels_last maps, which takes less time on a CPU.

    Convolutions get a subclass of their class. Outputs differ by rounding. Parameters stay in place in memory, since
    optimizers and DistributedDataParallel may refer to them. Models with untested layers, or with operators that
    misread the maps, do not change.

    Args:
        swins: backbones of other packages, whose convolutions do not change.
    """
    from .conv3x3 import use_channels_last  # needs kernels/

    excluded = {id(layer) for module in model.modules() for layer in getattr(module, 'roi_layers', ())}
    excluded.update(id(layer) for swin in swins for layer in swin.modules())
    for module in model.modules():
        if id(module) not in excluded and (takes_float32_maps(module) or not _is_tested(module)):
            return
    for pyramid in model.modules():
        if isinstance(pyramid, SwinPyramid):
            excluded.update(id(module) for module in pyramid.modules())
    for module in model.modules():
        if id(module) not in excluded:
            use_channels_last(module)


def _is_tested(module: nn.Module) -> bool:
    package, *path = type(module).__module__.split('.')
    if package in ('mmdet', 'mmseg'):
        return type(module).__name__ in TESTED_LAYERS or not set(path).isdisjoint(AROUND_LAYERS)
    return package in ELEMENTARY_PACKAGES
