"""The base class of layers that a backend computes."""

from collections.abc import Iterator
from typing import Any, Optional, Protocol

from mmengine.model import BaseModule
from torch import Tensor, nn

from ...backends.weight_cache import WeightCache


class Norm(Protocol):
    """A norm over channels, of which a backend reads weight, bias and eps."""

    weight: Optional[Tensor]
    bias: Optional[Tensor]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """The normalised tokens."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """See `nn.Module`."""


class BackendLayer(BaseModule):
    """A layer that hands its weights to a backend, which may keep copies of them in `cache`."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = WeightCache()

    def _apply(self, *args: Any, **kwargs: Any) -> 'BackendLayer':
        self.cache.clear()  # moved to a GPU, the layer needs them no more
        moved: BackendLayer = super()._apply(*args, **kwargs)
        return moved


def norm_values(norm: nn.Module) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Weight, bias and eps of a norm; three times None for `nn.Identity`, which stands for no norm."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
