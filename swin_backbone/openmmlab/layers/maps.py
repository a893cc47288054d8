"""Memory format and dtype of the maps between the layers of a model, on a CPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...mmcv_ops import in_use
from ...models.pyramid import SwinPyramid
from .conv3x3 import Conv3x3, use_winograd

# Layers of mmdet and mmseg that were tested with channels_last maps. CenterNet's head calls `view`, and fails on them.
TESTED = {
    *('FPN', 'RPNHead', 'StandardRoIHead', 'CascadeRoIHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead'),
    *('ConvFCBBoxHead', 'FCNMaskHead', 'RetinaHead', 'ATSSHead', 'UPerHead', 'FCNHead', 'PPM'),
    *('Mask2FormerHead', 'MaskFormerFusionHead', 'MSDeformAttnPixelDecoder', 'SinePositionalEncoding'),
    *('DeformableDetrTransformerEncoderLayer', 'Mask2FormerTransformerEncoder', 'Mask2FormerTransformerDecoder'),
    'Mask2FormerTransformerDecoderLayer',
}
ELEMENTARY = ('torch', 'mmcv', 'mmengine', 'swin_backbone')
AROUND_LAYERS = ('detectors', 'segmentors', 'data_preprocessors', 'data_preprocessor', 'losses')
CONTIGUOUS = '_swin_backbone_contiguous'  # whether a convolution's weight was, before `prepare_convolutions`
TORCH_ALONE = ('MultiScaleDeformableAttention',)  # modules of mmcv.ops without an operator of mmcv on a CPU


def takes_float32_maps(module: nn.Module) -> bool:
    """Return whether a layer takes contiguous float32 maps alone.

    mmcv's compiled operators refuse bfloat16 and misread channels_last memory. mmdet's RoI extractors round the corners
    of regions to the dtype of the maps.
    """
    if hasattr(module, 'roi_layers'):
        return not type(module).__module__.startswith('swin_backbone')
    kind = type(module)
    return kind.__module__.startswith('mmcv.ops') and kind.__name__ not in TORCH_ALONE and in_use() == 'compiled'


def prepare_convolutions(model: nn.Module, swins: Sequence[nn.Module] = ()) -> None:
    """Let the convolutions behind a Swin compute channels_last maps, which takes less time on a CPU.

    Convolutions of 3x3 taps become `Conv3x3`. Outputs differ by rounding. Parameters get other strides; optimizers and
    checkpoints see no difference. Models with untested layers, or with operators that misread the maps, do not change.
    Models in DistributedDataParallel do not change either: gradients of parameters with new strides would be permuted.

    Args:
        swins: backbones of other packages, whose convolutions do not change.
    """
    if _is_distributed(model):
        return
    own = {id(one) for module in model.modules() for one in getattr(module, 'roi_layers', ())}
    own.update(id(one) for swin in swins for one in swin.modules())
    for module in model.modules():
        if id(module) not in own and (takes_float32_maps(module) or not _is_tested(module)):
            return
    for pyramid in model.modules():
        if isinstance(pyramid, SwinPyramid):
            own.update(id(module) for module in pyramid.modules())
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and id(module) not in own:
            module.__dict__.setdefault(CONTIGUOUS, module.weight.is_contiguous())
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
            use_winograd(module)


def restore_convolutions(model: nn.Module) -> None:
    """Undo `prepare_convolutions`, in place. In DistributedDataParallel, parameters keep their strides."""
    keeps_strides = _is_distributed(model)
    module: Any
    for module in model.modules():
        if not keeps_strides and module.__dict__.pop(CONTIGUOUS, False):
            module.weight.data = module.weight.data.contiguous()
        if type(module) is Conv3x3:
            setattr(module, '__class__', nn.Conv2d)  # noqa: B010 - mypy knows the class
            del module.caches


def _is_distributed(model: nn.Module) -> bool:
    return any(isinstance(module, DistributedDataParallel) for module in model.modules())


def _is_tested(module: nn.Module) -> bool:
    package, *path = type(module).__module__.split('.')
    if package in ('mmdet', 'mmseg'):
        return type(module).__name__ in TESTED or not set(path).isdisjoint(AROUND_LAYERS)
    return package in ELEMENTARY
