"""The forward of a layer in torch operations, for second derivatives and batches of gradients."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...compat import preserve_torch_rng
from ...models.layers import PatchEmbed, PatchMerging, SwinBlock, SwinMLPBlock, SwinV2Block
from ...replace import library_disabled

SWIN_LAYERS = SwinBlock, SwinV2Block, SwinMLPBlock, PatchMerging, PatchEmbed


def find_swin_class(layer: Any) -> Any:
    """Return the class of this package that a layer is of."""
    return next(cls for cls in type(layer).__mro__ if cls in SWIN_LAYERS)


class _OriginalForward(nn.Module):
    """Calls the forward that the library replaces: neither the layer's hooks nor a user's forward around it."""

    def __init__(self, layer: nn.Module, forward: Optional[Callable[..., Tensor]] = None):
        super().__init__()
        self.layer, self.layer_forward = layer, forward or find_swin_class(layer).forward.__wrapped__

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_forward(self.layer, x)


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
    named_tensors = {f'layer.{name}': tensor for name, tensor in zip(names, tensors) if tensor is not None}
    with library_disabled(), preserve_torch_rng():
        if random_state is not None:
            torch.set_rng_state(random_state)
        return functional_call(_OriginalForward(layer, forward), named_tensors, (x,), tie_weights=False)
