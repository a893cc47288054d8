"""The base class of layers with a version in the compiled library, and the check for changed layers.

The library reads weights and repeats the computation of a layer's modules. A replaced, wrapped or hooked module must
run in torch.
"""

from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar

import torch
from mmcv.cnn.bricks import Linear
from mmcv.cnn.bricks.drop import DropPath
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn

from ...kernels.choose import why_not_native
from ...kernels.weight_cache import WeightCache

Class = TypeVar('Class', bound=type[nn.Module])

# Modules with a copy of the computation in the library, and the attributes of the computation. Types must match
# exactly, because a subclass may compute a different result.
_known: dict[type[nn.Module], tuple[str, ...]] = {
    nn.LayerNorm: ('weight', 'bias', 'eps'),
    nn.Linear: ('weight', 'bias'),
    Linear: ('weight', 'bias'),
    nn.Conv2d: ('weight', 'bias', 'stride', 'padding', 'dilation', 'groups'),
    nn.Dropout: ('p', 'training'),
    DropPath: ('drop_prob', 'training'),
    nn.GELU: ('approximate',),
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.Sequential, Sequential, FFN), ()),
}


def known(*attributes: str) -> Callable[[Class], Class]:
    """Decorate a class of the package: the library repeats the class's `forward`.

    The attributes decide the computation.
    """

    def add(cls: Class) -> Class:
        _known[cls] = attributes
        return cls

    return add


class Layer(BaseModule):
    """A layer for the compiled library, with a fallback to torch.

    Attributes:
        backend: 'auto', 'native', 'torch' or 'triton'.
        cache: of packed weights, and of the last check.
    """

    backend = 'auto'

    def __init__(self) -> None:
        super().__init__()
        self.cache = WeightCache()
        self._types_built: list[type[nn.Module]] = []

    def for_library(self, x: Tensor) -> Optional[Any]:
        """Return `library_arguments()` if the compiled library computes the layer for `x`, or None.

        Raises:
            ValueError: if `backend` is 'native' and the library cannot compute the layer. The message has the reason.
        """
        if self.backend not in ('auto', 'native'):
            return None
        reason, arguments = why_not_native(x), None
        if reason is None:
            checked, state = self.cache.checked, state_of(self)
            if checked is None or checked[0] != state:
                reason = self.why_not_native()
                checked = self.cache.checked = state, reason, None if reason else self.library_arguments()
            _, reason, arguments = checked
        if reason is not None and self.backend == 'native':
            raise ValueError(f"backend='native' cannot compute this: {reason}")
        return arguments

    def why_not_native(self) -> Optional[str]:
        """Return why the library cannot compute the current layer, in a sentence; None: no reason."""
        types = iter(self._types_built)
        for name, module in modules_inside(self):
            kind = type(module)
            if kind is not next(types, None) or kind not in _known or is_hooked(module):
                return f'{name} of {type(self).__name__} is not as it was built.'
        return None if next(types, None) is None else f'{type(self).__name__} lacks a module that it was built with.'

    def library_arguments(self) -> Any:
        """Return the parameters and numbers for the library."""
        raise NotImplementedError

    def record_modules(self) -> None:
        """Record the types of the modules inside; called at the end of `__init__`."""
        self._types_built = [type(module) for _, module in modules_inside(self)]

    def _apply(self, *args: Any, **kwargs: Any) -> 'Layer':
        self.cache.clear()  # packed weights of a layer on a GPU are of no use
        moved: Layer = super()._apply(*args, **kwargs)
        return moved


def state_of(layer: nn.Module) -> list[Any]:
    """Return the state behind the library's computation of a layer, except the numbers of tensors."""
    state: list[Any] = []
    parents = [layer]
    for parent in parents:  # grows
        for module in parent._modules.values():
            if module is None:
                continue
            kind, parameters, others = type(module), module._parameters, module.__dict__
            state += kind, is_hooked(module)
            for name in _known.get(kind, ()):
                value = parameters[name] if name in parameters else others.get(name)
                if isinstance(value, Tensor):
                    memory = value.data_ptr() if value.layout is torch.strided else None
                    state += id(value), value.dtype, value.shape, memory
                else:
                    state.append(value)
            if module._modules:
                parents.append(module)
    return state


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has forward or backward hooks, or a `forward` on the instance."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ) or ('forward' in module.__dict__)


def modules_inside(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules inside a layer, level by level. `named_modules` takes four times the time."""
    parents = [layer]
    for parent in parents:  # grows
        for name, module in parent._modules.items():
            if module is not None:
                yield name, module
                if module._modules:
                    parents.append(module)


def norm_values(norm: Optional[nn.Module]) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Return weight, bias and eps of a norm; three times None for `nn.Identity` and None."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)
