"""The base class of layers that a backend computes."""

from typing import Any, Optional

from mmengine.model import BaseModule
from torch import Tensor, nn

from ...backends.weight_cache import WeightCache


class BackendLayer(BaseModule):
    """A layer that hands its weights to a backend, which may keep copies of them in `cache`."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = WeightCache()

    def _apply(self, *args: Any, **kwargs: Any) -> 'BackendLayer':
        self.cache.clear()  # moved to a GPU, the layer needs them no more
        return super()._apply(*args, **kwargs)


def norm_values(norm: nn.Module) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Weight, bias and eps of a norm; three times None for `nn.Identity`, which stands for no norm."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
