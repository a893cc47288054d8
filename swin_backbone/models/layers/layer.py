"""The base class of layers that compiled operators can compute."""

from typing import Optional

from mmengine.model import BaseModule
from torch import Tensor, nn

from ...backends.native import Packed
from ...backends.triton.cast import CastWeights


class CompiledLayer(BaseModule):
    """A layer that stores packed or cast copies of its weights; see `Packed` and `CastWeights`."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.cast_weights = Packed(), CastWeights()

    def train(self, mode: bool = True) -> 'CompiledLayer':
        """Set training or eval mode, and notice values written through `.data`, as mmengine's EMAHook does."""
        self._forget()
        return super().train(mode)

    def _apply(self, *args, **kwargs) -> 'CompiledLayer':
        self._forget()
        return super()._apply(*args, **kwargs)

    def _forget(self) -> None:
        self.packed.clear()
        self.cast_weights.clear()


def norm_values(norm: nn.Module) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Weight, bias and eps of a norm; three times None for `nn.Identity`, which stands for no norm."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
