"""The memory and the dtype of the maps that a model's layers hand on, on a CPU."""

import torch
from torch import nn

from ...mmcv_ops import in_use
from ...models.pyramid import SwinPyramid

TORCH_ALONE = ('MultiScaleDeformableAttention',)  # what of mmcv.ops is no compiled operator on a CPU


def takes_float32_maps(module: nn.Module) -> bool:
    """Whether a layer must not get maps of bfloat16, nor of channels_last memory: it hands them to an operator that
    mmcv has compiled, which refuses the one and misreads the other, or it rounds regions to the maps' dtype."""
    if hasattr(module, 'roi_layers'):
        return not type(module).__module__.startswith('swin_backbone')
    kind = type(module)
    return kind.__module__.startswith('mmcv.ops') and kind.__name__ not in TORCH_ALONE and in_use() == 'compiled'


def use_channels_last(model: nn.Module) -> None:
    """Let the convolutions behind a Swin take and emit channels_last maps on a CPU, where they are faster so.

    Parameters stay what they are, with other strides: optimizers and checkpoints see no difference. A model with
    operators of mmcv that misread such maps is left as it is.
    """
    own = {id(one) for module in model.modules() for one in getattr(module, 'roi_layers', ())}
    if any(takes_float32_maps(module) and id(module) not in own for module in model.modules()):
        return
    for pyramid in model.modules():
        if isinstance(pyramid, SwinPyramid):
            own.update(id(module) for module in pyramid.modules())
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and id(module) not in own:
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
