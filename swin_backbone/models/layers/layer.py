"""The base class of layers that the compiled library can replace, and the check for changed layers.

The library reads weights and repeats the computation of a layer's modules. A module that a user has replaced, wrapped
or hooked must be called instead.
"""

from collections.abc import Iterator
from typing import Any, Optional, Protocol, TypeVar

from mmcv.cnn.bricks import Linear
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn

from ...backends.choose import why_not_native
from ...backends.weight_cache import WeightCache
from ...compat import has_global_hooks

# Modules whose computation the library repeats. Types must match exactly: a subclass may compute something else.
_known: set[type[nn.Module]] = {
    *(nn.LayerNorm, nn.Linear, Linear, nn.Conv2d, nn.Dropout, nn.Identity, nn.ReLU, nn.GELU, nn.Sequential),
    *(DropPath, FFN, Sequential),
}

Class = TypeVar('Class', bound=type[nn.Module])


class Norm(Protocol):
    """A norm over channels."""

    weight: Optional[Tensor]
    bias: Optional[Tensor]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised tokens."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """See `nn.Module`."""


class Layer(BaseModule):
    """A layer that the compiled library computes where it can.

    Attributes:
        backend: 'auto', 'native', 'torch' or 'triton'.
        cache: of packed weights.
    """

    backend = 'auto'

    def __init__(self) -> None:
        super().__init__()
        self.cache = WeightCache()
        self._modules_built: Optional[list[type[nn.Module]]] = None

    def by_library(self, x: Tensor) -> bool:
        """Return whether the compiled library computes this layer for `x` now.

        Raises:
            ValueError: if `backend` is 'native' and the library cannot compute the layer. The message has the reason.
        """
        if self.backend not in ('auto', 'native'):
            return False
        reason = why_not_native(x) or self.why_not_native()
        if reason is not None and self.backend == 'native':
            raise ValueError(f"backend='native' cannot compute this: {reason}")
        return reason is None

    def why_not_native(self) -> Optional[str]:
        """Return why the library cannot compute the layer as it is now, in one sentence; None: it can."""
        name = find_changed_module(self, self._modules_built)
        return None if name is None else f'{name} of {type(self).__name__} is not as it was built.'

    def record_modules(self) -> None:
        """Record the modules inside; called at the end of `__init__`."""
        self._modules_built = [type(module) for _, module in modules_inside(self)]

    def _apply(self, *args: Any, **kwargs: Any) -> 'Layer':
        self.cache.clear()  # packed weights of a layer on a GPU are of no use
        moved: Layer = super()._apply(*args, **kwargs)
        return moved


def known(cls: Class) -> Class:
    """Decorate a class of this package whose `forward` the library repeats."""
    _known.add(cls)
    return cls


def find_changed_module(layer: nn.Module, built: Optional[list[type[nn.Module]]]) -> Optional[str]:
    """Return the name of a module in `layer` that was replaced, hooked or given a `forward`; None: there is none.

    Args:
        built: the types of the modules inside, when the layer was built.
    """
    if has_global_hooks():
        return 'A hook on all modules: a module'
    expected = iter(built or ())
    for name, module in modules_inside(layer):
        kind = type(module)
        if kind is not next(expected, None) or kind not in _known or is_hooked(module):
            return name
    return None if next(expected, None) is None else 'A module'


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has forward or backward hooks, or a `forward` of its own."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ) or ('forward' in module.__dict__)


def modules_inside(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules inside a layer, level by level. `named_modules` takes four times as long."""
    parents = [layer]
    for parent in parents:  # grows
        for name, module in parent._modules.items():
            if module is not None:
                yield name, module
                if module._modules:
                    parents.append(module)


def norm_values(norm: nn.Module) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Return weight, bias and eps of a norm; three times None for `nn.Identity`, which stands for no norm."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
