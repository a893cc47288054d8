"""The base class of layers that compiled operators can compute."""

from typing import Optional

from mmengine.model import BaseModule
from torch import Tensor, nn

from ..native import Packed


class CompiledLayer(BaseModule):
    """A layer that stores packed copies of its weights; see `native.Packed`."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = Packed()

    def _apply(self, *args, **kwargs) -> 'CompiledLayer':
        self.packed.clear()  # moved to a GPU, the layer needs them no more
        return super()._apply(*args, **kwargs)


def norm_values(norm: nn.Module) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Weight, bias and eps of a norm; three times None for `nn.Identity`, which stands for no norm."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
