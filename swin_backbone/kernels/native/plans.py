"""Plans of modules: the computation of a module is read once, and prepared for each call.

A plan calls the library, or in a graph and under a dispatch mode an operator of torch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from ...compat import constant_when_compiled
from ...modes import is_recorded
from ...replace import forget_readings, read_once
from . import operators as operators  # registers the operators of torch
from .availability import find_obstacle
from .layers import Derive, LayerCall, SwinComputation, as_given, plan_layer
from .memory import Unfit, free_if_elsewhere
from .schemas import Weights


class Layer(NamedTuple):
    """The computation in the place of the forward of a module, and the parameters of the module.

    Attributes:
        by_torch: computes the output in torch operations, from the module, the input and the parameters.
        derive: makes the computation's weights from the parameters.
    """

    computation: SwinComputation
    by_torch: Callable[..., Tensor]
    parameters: Sequence[Optional[Tensor]]
    derive: Derive = as_given


class OperatorCall(NamedTuple):
    """A computation that is ready to run as an operator of torch; see `replace.Plan`.

    Attributes:
        weights: of the computation, made from the parameters in torch operations.
    """

    computation: Any
    weights: Weights

    def __call__(self, x: Tensor, *_: Any) -> Tensor:
        run = getattr(torch.ops.swin_backbone, self.computation.name)
        y: Tensor = run(x.float(), *self.computation.arguments(self.weights))[0]
        return y


Call = Union[LayerCall, OperatorCall]


def plan_module(read: Callable[..., Union[Layer, str]], module: nn.Module, x: Tensor) -> Union[Call, str]:
    """Return the plan of a module for `x`, or in a sentence why there is none; see `replace.Replacement`.

    Args:
        read: `read(module, x)` returns the `Layer`, or in a sentence why there is none; see `read_once`.
    """
    layer = find_obstacle(x, module) or read_once(read, module, x)
    if isinstance(layer, str):
        free_if_elsewhere(module, x)
        return layer
    try:
        return plan_swin_layer(layer, module, x.shape)
    except Unfit as error:
        forget_readings(module)  # sizes may have changed
        return str(error)


def plan_swin_layer(layer: Layer, module: nn.Module, shape: Sequence[int]) -> Call:
    """Return the plan of a layer for maps of a shape; or raise `Unfit`."""
    computation, by_torch, parameters, derive = layer
    if not is_recorded():
        return plan_layer(computation, partial(by_torch, module), shape, *parameters, derive=derive)
    _register_formulas()
    weights = derive(*parameters)
    computation.check(shape, *weights)
    return OperatorCall(computation, weights)


@constant_when_compiled
def _register_formulas() -> None:
    from . import flops as flops  # torch's counter imports sympy, which takes half a second
