"""Checks that a layer is as built, since the library calls none of its modules; and the layer's forward by torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.random import fork_rng

from ...compat import is_hooked
from ...modes import autocast_dtype, linear_dtype
from ...replace import refuse
from .. import native
from ..native.availability import torch_alone
from ..native.memory import drop_cache

Modules = dict[str, Any]  # inside a layer, by name

PRECISION = '_swin_backbone_precision'  # the attribute of a layer with the precision of `accelerate`


def products_dtype(layer: nn.Module, x: Tensor, *tensors: Optional[Tensor]) -> torch.dtype:
    """Return the dtype of a layer's matrix products: int8 if `accelerate` chose so and no gradient is recorded.

    Args:
        tensors: the parameters of the layer.
    """
    if vars(layer).get(PRECISION) == 'int8' and not records_gradients(x, *tensors):
        return torch.int8
    return linear_dtype(x)


def records_gradients(*tensors: Optional[Tensor]) -> bool:
    """Return whether autograd records operations on one of the tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def modules_inside(layer: nn.Module) -> Modules:
    """Return the modules inside a layer by name, level by level. `named_modules` takes five times the time."""
    modules, parents = {}, [('', layer)]
    for prefix, parent in parents:  # the list grows in the loop
        for name, module in parent._modules.items():
            if module is not None:
                modules[prefix + name] = module
                if module._modules:
                    parents.append((f'{prefix}{name}.', module))
    return modules


def is_as_built(
    layer: nn.Module, modules: Modules, kinds: Mapping[str, type[nn.Module]], raise_error: bool = False
) -> bool:
    """Return whether the modules inside a layer have the types of `kinds`, by name, and no hooks.

    A module without an entry in `kinds` must be an `nn.Identity`. Types must match exactly, because a subclass may
    compute a different result.
    """
    for name, module in modules.items():
        if type(module) is not kinds.get(name, nn.Identity) or is_hooked(module):
            return refuse('native', f'{name} of {type(layer).__name__} is not as it was built.', raise_error)
    if not modules.keys() >= kinds.keys():
        return refuse('native', f'{type(layer).__name__} lacks a module that it was built with.', raise_error)
    return True


def norm_values(norm: Optional[nn.Module]) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Return weight, bias and eps of a norm; three times None for `nn.Identity` and None."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)


def can_read_map(layer: nn.Module, x: Optional[Tensor], raise_error: bool = False) -> bool:
    """Return whether the library computes a layer for the map `x`: float32, or any floating dtype under autocast.

    If the map is on another device, so are the weights: the memory of the packed weights is freed.
    """
    if x is None:
        return True
    if x.device.type != 'cpu' and not torch.compiler.is_compiling():
        drop_cache(layer)
    if x.dtype is not torch.float32 and not (x.is_floating_point() and autocast_dtype(x.device.type)):
        reason = f'The compiled library takes maps of float32, under autocast of a floating dtype, not {x.dtype}.'
        return refuse('native', reason, raise_error)
    return native.can_run(x, raise_error)


class _OwnForward(nn.Module):
    """Calls the forward of a layer, without the layer's hooks."""

    def __init__(self, layer: nn.Module, forward: Optional[Callable[..., Tensor]] = None):
        super().__init__()
        self.layer, self.layer_forward = layer, forward or layer.forward

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_forward(x)


def forward_by_torch(
    layer: nn.Module,
    names: Sequence[str],
    random_state: Optional[Tensor],
    x: Tensor,
    *tensors: Optional[Tensor],
    forward: Optional[Callable[..., Tensor]] = None,
) -> Tensor:
    """Return the forward of a layer in torch operations, with other tensors in the place of its own.

    Args:
        names: of the tensors in the layer.
        random_state: of torch's generator before the forward that is repeated; None: the layer draws no numbers.
        forward: a function of the map; None: the layer's forward.
    """
    given = {f'layer.{name}': tensor for name, tensor in zip(names, tensors) if tensor is not None}
    with torch_alone(), fork_rng(devices=[]):
        if random_state is not None:
            torch.set_rng_state(random_state)
        return functional_call(_OwnForward(layer, forward), given, (x,), tie_weights=False)
