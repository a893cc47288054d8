"""Layer-wise learning-rate decay for a Swin in a detector or segmentor."""

from typing import Any, Optional

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ..checks import check_number
from ..models.pyramid import SwinPyramid
from .swap.recipe import POSITION_KEYS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class SwinLayerDecayOptimizerConstructor(DefaultOptimWrapperConstructor):
    """Make parameter groups with learning rates that fall with the distance of a layer from the heads.

    The layers are the patch embedding, then each block, in order; neck and heads are above the last block. With L
    blocks, block l = 1..L gets the rate lr * decay_rate ** (L + 1 - l), the patch embedding decay_rate ** (L + 1),
    neck and heads lr. A patch merging belongs to the block in front, an output norm to the last block of its stage
    (Bao et al. 2021, appendix, "layer-wise decay"; Liu et al. 2022 fine-tune Swin V2 by this rule).

    Norms, biases, position tables and V2's position networks get no weight decay, in all parts of the model
    (microsoft/Swin-Transformer's optimizer, and the toolboxes' constructors for ConvNeXt and BEiT).

        optim_wrapper = dict(
            constructor='SwinLayerDecayOptimizerConstructor',
            optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
            paramwise_cfg=dict(decay_rate=0.9))

    Args:
        optim_wrapper_cfg: the wrapper with its optimizer.
        paramwise_cfg: decay_rate, in (0, 1], and no other key.

    Raises:
        TypeError: if decay_rate is missing or no number.
        ValueError: if decay_rate is out of range, for other keys, or if the model has no Swin of this package.

    Examples:
        >>> from torch import nn
        >>> from swin_backbone import SwinBackbone, SwinLayerDecayOptimizerConstructor
        >>> model = nn.ModuleDict(dict(backbone=SwinBackbone(arch='nano'), head=nn.Linear(256, 10)))
        >>> wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1.0))
        >>> make = SwinLayerDecayOptimizerConstructor(wrapper, dict(decay_rate=0.5))
        >>> sorted({group['lr'] for group in make(model).param_groups})[-2:]  # the last block and the head
        [0.5, 1.0]
    """

    def __init__(self, optim_wrapper_cfg: dict[str, Any], paramwise_cfg: Optional[dict[str, Any]] = None):
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        unknown = set(self.paramwise_cfg) - {'decay_rate'}
        if unknown:
            raise ValueError(f'paramwise_cfg takes decay_rate alone, got {dict(self.paramwise_cfg)}')
        allowed = 'a number above 0 and at most 1'
        rate = self.paramwise_cfg.get('decay_rate')
        check_number('paramwise_cfg.decay_rate', rate, allowed, lambda rate: 0 < rate <= 1)

    def add_params(self, params: list[dict[str, Any]], module: nn.Module, **_: Any) -> None:
        """Append a group for each learning rate and decay of a model's trainable parameters."""
        layer_of = find_layers(module)
        top = max(layer_of.values()) + 1  # neck and heads
        groups: dict[tuple[int, Optional[float]], dict[str, Any]] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            layer = layer_of.get(name, top)
            no_decay = parameter.ndim <= 1 or any(key in name for key in POSITION_KEYS)
            decay = 0.0 if no_decay else self.base_wd
            group = groups.setdefault(
                (layer, decay),
                dict(
                    params=[],
                    param_names=[],
                    lr=self.base_lr * self.paramwise_cfg['decay_rate'] ** (top - layer),
                    weight_decay=decay,
                ),
            )
            group['params'].append(parameter)
            group['param_names'].append(name)
        params.extend(groups[key] for key in sorted(groups, key=lambda key: (key[0], key[1] or 0.0)))
        for group in params:
            print_log(
                f'lr {group["lr"]:.3g}, decay {group["weight_decay"]}: {len(group["params"])} parameters', 'current'
            )


def find_layers(model: nn.Module) -> dict[str, int]:
    """Return the layer of each parameter of the backbone, by `SwinPyramid.layer_order`.

    A parameter that a subclass adds is in no layer, and learns like neck and heads.

    Raises:
        ValueError: if the model has no Swin of this package.
    """
    backbones = ((name, module) for name, module in model.named_modules() if isinstance(module, SwinPyramid))
    path, backbone = next(backbones, (None, None))
    if backbone is None:
        raise ValueError(
            f'SwinLayerDecayOptimizerConstructor takes a model with a SwinBackbone, got {type(model).__name__} without'
        )
    layer_of = {prefix: layer for layer, prefixes in enumerate(backbone.layer_order()) for prefix in prefixes}
    path = path + '.' if path else ''
    return {
        path + name: layer
        for name, _ in backbone.named_parameters()
        for prefix, layer in layer_of.items()
        if f'{name}.'.startswith(f'{prefix}.')
    }
