"""A single layer, apart from its model: the library's plan for a small map, and the forward by torch."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...compat import preserve_torch_rng
from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...replace import PlanOrReason, library_disabled
from ...sizes import Size
from ..native.availability import PRECISION

SWIN_LAYERS = SwinBlock, SwinV2Block, SwinMLPBlock, PatchMerging, PatchEmbed


def plan_single_layer(layer: Any, precision: Optional[str], size: Optional[Size] = None) -> PlanOrReason:
    """Return the library's plan of a layer of ours in eval mode, without gradients.

    Args:
        precision: see `accelerate`.
        size: (height, width) of the map; None: a small one.
    """
    cls = _swin_class(layer)
    modes = [(module, module.training) for module in layer.modules()]
    kept = {name: value for name, value in vars(layer).items() if name == PRECISION}
    try:
        for module, _ in modes:
            module.training = False  # training may have dropout
        layer.__dict__[PRECISION] = precision
        with torch.no_grad():
            x = torch.zeros(_input_shape(layer, size), dtype=torch.float32, device='cpu')
            plans = [
                replacement.make_plan(layer, x)
                for replacement in cls.forward.replacements
                if replacement.backend == 'native'
            ]
    except AttributeError:  # of a module of another kind inside
        return f'{type(layer).__name__} is not as it was built.'
    finally:
        layer.__dict__.pop(PRECISION)
        layer.__dict__.update(kept)
        for module, is_training in modes:
            module.training = is_training
    return plans[0] if plans else None


def _swin_class(layer: Any) -> Any:
    """Return the class of this package that a layer is of."""
    return next(cls for cls in type(layer).__mro__ if cls in SWIN_LAYERS)


def _input_shape(layer: Any, size: Optional[Size]) -> tuple[int, ...]:
    """Return the shape of an input of a layer of ours, by the sizes of its modules."""
    if isinstance(layer, PatchEmbed):
        return 1, layer.projection.in_channels, *(size or layer.patch_size)
    if isinstance(layer, PatchMerging):
        return 1, *(size or (2, 2)), layer.reduction.in_features // 4
    return 1, *(size or layer.window_size), layer.ffn.layers[1].out_features


def read_norm(norm: Optional[nn.Module]) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Return weight, bias and eps of a norm; (None, None, None) for `nn.Identity` and None."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)


class _OriginalForward(nn.Module):
    """Calls the forward that the library replaces: neither the layer's hooks nor a user's forward around it."""

    def __init__(self, layer: nn.Module, forward: Optional[Callable[..., Tensor]] = None):
        super().__init__()
        self.layer, self.layer_forward = layer, forward or _swin_class(layer).forward.__wrapped__

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer_forward(self.layer, x)
        return y


def forward_by_torch(
    names: Sequence[str],
    layer: nn.Module,
    x: Tensor,
    *tensors: Optional[Tensor],
    random_state: Optional[Tensor] = None,
    forward: Optional[Callable[..., Tensor]] = None,
) -> Tensor:
    """Return the forward of a layer in torch operations, with other tensors in the place of its own.

    Args:
        names: of the tensors in the layer.
        random_state: of torch's generator before the forward that is repeated; None: the layer draws no numbers.
        forward: a function of the layer and the map; None: the marked forward of the layer's class.
    """
    given = {f'layer.{name}': tensor for name, tensor in zip(names, tensors) if tensor is not None}
    with library_disabled(), preserve_torch_rng():
        if random_state is not None:
            torch.set_rng_state(random_state)
        return functional_call(_OriginalForward(layer, forward), given, (x,), tie_weights=False)
