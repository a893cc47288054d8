"""The library's plan of a single layer, apart from its model, for a small map."""

from typing import Any, Optional

import torch

from ...models.layers import PatchEmbed, PatchMerging
from ...replace import PlanOrReason
from ...sizes import Size
from ..native.availability import PRECISION_ATTRIBUTE
from .by_torch import find_swin_class


def plan_single_layer(layer: Any, precision: Optional[str], size: Optional[Size] = None) -> PlanOrReason:
    """Return the library's plan of a layer of ours in eval mode, without gradients.

    Args:
        precision: see `accelerate`.
        size: (height, width) of the map; None: a small one.
    """
    cls = find_swin_class(layer)
    modes = [(module, module.training) for module in layer.modules()]
    saved = {name: value for name, value in vars(layer).items() if name == PRECISION_ATTRIBUTE}
    try:
        for module, _ in modes:
            module.training = False  # training may have dropout
        layer.__dict__[PRECISION_ATTRIBUTE] = precision
        with torch.no_grad():
            x = torch.zeros(_find_input_shape(layer, size), dtype=torch.float32, device='cpu')
            plans = [
                replacement.make_plan(layer, x)
                for replacement in cls.forward.replacements
                if replacement.backend == 'native'
            ]
    except AttributeError:  # of a module of another kind inside
        return f'{type(layer).__name__} is not as it was built.'
    finally:
        layer.__dict__.pop(PRECISION_ATTRIBUTE)
        layer.__dict__.update(saved)
        for module, is_training in modes:
            module.training = is_training
    return plans[0] if plans else None


def _find_input_shape(layer: Any, size: Optional[Size]) -> tuple[int, ...]:
    """Return the shape of an input of a layer of ours, by the sizes of its modules."""
    if isinstance(layer, PatchEmbed):
        return 1, layer.projection.in_channels, *(size or layer.patch_size)
    if isinstance(layer, PatchMerging):
        return 1, *(size or (2, 2)), layer.reduction.in_features // 4
    return 1, *(size or layer.window_size), layer.ffn.layers[1].out_features
