"""The memory and the dtype of the maps that a model's layers hand on, on a CPU."""

from collections.abc import Sequence

import torch
from torch import nn

from ...mmcv_ops import in_use
from ...models.pyramid import SwinPyramid
from .conv3x3 import use_winograd

# What of mmdet and mmseg was tested on such maps. CenterNet's head, for one, asks for a `view` that they do not have.
TESTED = {
    *('FPN', 'RPNHead', 'StandardRoIHead', 'CascadeRoIHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead'),
    *('ConvFCBBoxHead', 'FCNMaskHead', 'RetinaHead', 'ATSSHead', 'UPerHead', 'FCNHead', 'PPM'),
    *('Mask2FormerHead', 'MaskFormerFusionHead', 'MSDeformAttnPixelDecoder', 'SinePositionalEncoding'),
    *('DeformableDetrTransformerEncoderLayer', 'Mask2FormerTransformerEncoder', 'Mask2FormerTransformerDecoder'),
    'Mask2FormerTransformerDecoderLayer',
}
ELEMENTARY = ('torch', 'mmcv', 'mmengine', 'swin_backbone')
AROUND_LAYERS = ('detectors', 'segmentors', 'data_preprocessors', 'data_preprocessor', 'losses')
TORCH_ALONE = ('MultiScaleDeformableAttention',)  # what of mmcv.ops is no compiled operator on a CPU


def takes_float32_maps(module: nn.Module) -> bool:
    """Whether a layer must not get maps of bfloat16, nor of channels_last memory: it hands them to an operator that
    mmcv has compiled, which refuses the one and misreads the other, or it rounds regions to the maps' dtype."""
    if hasattr(module, 'roi_layers'):
        return not type(module).__module__.startswith('swin_backbone')
    kind = type(module)
    return kind.__module__.startswith('mmcv.ops') and kind.__name__ not in TORCH_ALONE and in_use() == 'compiled'


def prepare_convolutions(model: nn.Module, swins: Sequence[nn.Module] = ()) -> None:
    """Let the convolutions behind a Swin take and emit channels_last maps on a CPU, where they are faster so.

    Those of 3x3 taps become `Conv3x3`, whose outputs differ by rounding.

    Parameters stay what they are, with other strides: optimizers and checkpoints see no difference. A model is left as
    it is if one of its layers was not tested so, or calls operators of mmcv that misread such maps.

    Args:
        swins: backbones of other packages, which emit contiguous maps and stay as they are.
    """
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
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
            use_winograd(module)


def _is_tested(module: nn.Module) -> bool:
    package, *path = type(module).__module__.split('.')
    if package in ('mmdet', 'mmseg'):
        return type(module).__name__ in TESTED or not set(path).isdisjoint(AROUND_LAYERS)
    return package in ELEMENTARY
