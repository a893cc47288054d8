"""What layers that compiled operators can compute have in common."""

from typing import Optional

from mmengine.model import BaseModule
from torch import Tensor, nn

from ..native import Packed
from ..ops.cast import CastWeights


class CompiledLayer(BaseModule):
    """A layer that keeps its weights as they are computed with; see `native.Packed` and `ops.cast.CastWeights`."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.cast_weights = Packed(), CastWeights()

    def train(self, mode: bool = True) -> 'CompiledLayer':
        """Set training or eval mode. What was written through `.data`, as mmengine's EMAHook does, is seen then."""
        self._forget()
        return super().train(mode)

    def _apply(self, *args, **kwargs) -> 'CompiledLayer':
        self._forget()
        return super()._apply(*args, **kwargs)

    def _forget(self) -> None:
        self.packed.clear()
        self.cast_weights.clear()


def norm_values(norm: nn.Module) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Weight, bias and eps of a norm; None of `nn.Identity`, which stands where there is none."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
