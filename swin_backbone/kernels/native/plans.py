"""Plans of the library's computations.

A plan calls the library, with gradients in an `autograd.Function`. In a graph and under a dispatch mode, it calls an
operator of torch.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Optional, TypeVar, Union

import torch
from torch import Tensor, nn

from ...compat import constant_when_compiled
from ...modes import is_batched, needs_torch_op
from ...replace import Reason
from ..changes import forget_readings, read_once
from . import operators as operators  # registers the operators of torch
from .availability import find_unsupported
from .computation import Computation, MakeWeights, SwinComputation, Weights, as_given
from .memory import Unsupported, free_if_elsewhere, is_readable

Read = TypeVar('Read')
Made = TypeVar('Made')


class NativeLayer(NamedTuple):
    """A module as the library computes it.

    Attributes:
        by_torch: `by_torch(module, x, *parameters)` computes the output in torch operations.
        parameters: of the module.
        make_weights: see `Computation.prepare`.
    """

    computation: SwinComputation
    by_torch: Callable[..., Tensor]
    parameters: Weights
    make_weights: MakeWeights = as_given


class LayerPlan(NamedTuple):
    """A computation that is ready to run, with gradients if autograd records; see `replace.Plan`.

    A call takes the arguments of `Computation.forward`, and with gradients `random_state`, the state of torch's
    generator before numbers were drawn for the call. `by_torch` draws them again.

    Attributes:
        prepared: of `Computation.prepare`, for the shape of the input.
        by_torch: `by_torch(x, *parameters)` computes the output in torch operations, for second derivatives and
            batches of gradients.
        casts_input: whether the input is cast to float32.
    """

    computation: Any
    prepared: Any
    by_torch: Callable[..., Tensor]
    parameters: Weights
    make_weights: MakeWeights = as_given
    casts_input: bool = True

    def __call__(self, x: Tensor, *_: Any, random_state: Optional[Tensor] = None, **call: Any) -> Tensor:
        x = x.float() if self.casts_input else x
        if torch.is_grad_enabled():
            by_torch = self.by_torch if random_state is None else partial(self.by_torch, random_state=random_state)
            y: Tensor = _Function.apply((self, by_torch, call), x, *self.parameters)  # type: ignore[no-untyped-call]
            return y
        output: Tensor = self.computation.forward(x, self.prepared, **call)[0]
        return output


class OperatorPlan(NamedTuple):
    """A computation that is ready to run as an operator of torch; see `LayerPlan`."""

    computation: Any
    weights: Weights

    def __call__(self, x: Tensor, *_: Any, random_state: Optional[Tensor] = None, **call: Any) -> Tensor:
        run = getattr(torch.ops.swin_backbone, self.computation.operator)
        y: Tensor = run(x.float(), *self.computation.arguments(self.weights, **call))[0]
        return y


NativePlan = Union[LayerPlan, OperatorPlan]


def plan_layer(layer: NativeLayer, module: nn.Module, shape: Sequence[int]) -> NativePlan:
    """Return the plan of a layer for inputs of a shape; or raise `Unsupported`."""
    computation, by_torch, parameters, make_weights = layer
    if not needs_torch_op():
        prepared = computation.prepare(shape, parameters, make_weights)
        return LayerPlan(computation, prepared, partial(by_torch, module), parameters, make_weights)
    _register_formulas()
    weights = make_weights(*parameters)
    computation.check(shape, *weights)
    return OperatorPlan(computation, weights)


def plan_module(
    read: Callable[..., Union[Read, Reason]],
    make_plan: Callable[[Read, nn.Module, Sequence[int]], Made],
    module: nn.Module,
    x: Tensor,
) -> Union[Made, Reason]:
    """Return the plan of a module for `x`, or the reason why there is none; see `replace.Replacement`.

    Args:
        read: `read(module, x)` returns what the library computes, or a reason; see `read_once`.
        make_plan: `make_plan(what_was_read, module, shape)`, like `plan_layer`.
    """
    read_or_reason = find_unsupported(x) or read_once(read, module, x)
    if isinstance(read_or_reason, str):
        free_if_elsewhere(module, x)
        return read_or_reason
    try:
        return make_plan(read_or_reason, module, x.shape)
    except Unsupported as error:
        forget_readings(module)  # sizes may have changed
        return str(error)


@constant_when_compiled
def _register_formulas() -> None:
    from . import flops as flops  # torch's counter imports sympy, which takes half a second


def run_computation(
    computation: Computation, by_torch: Callable[..., Tensor], x: Tensor, *weights: Optional[Tensor], **call: Any
) -> Tensor:
    """Return the output of a computation, with gradients; or raise `Unsupported`.

    Args:
        by_torch: see `LayerPlan`.
        x: in the dtype of the computation.
        call: see `Computation.forward`.
    """
    prepared = computation.prepare(x.shape, weights, as_given)
    return LayerPlan(computation, prepared, by_torch, weights, casts_input=False)(x, **call)


class _Function(torch.autograd.Function):
    """The forward and backward of a `LayerPlan`."""

    @staticmethod
    def forward(ctx: Any, plan_and_call: Any, x: Tensor, *parameters: Optional[Tensor]) -> Tensor:
        plan, by_torch, call = plan_and_call
        output, *saved = plan.computation.forward(x, plan.prepared, **call)
        ctx.save_for_backward(x, *parameters, *saved)
        ctx.kept = plan.computation, plan.make_weights, by_torch, call
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (computation, make_weights, by_torch, call), (needs_x, *needs_parameters) = ctx.kept, ctx.needs_input_grad[1:]
        # Hooks of saved tensors may return tensors at any address.
        x, *others = [t if t is None or is_readable(t) else t.clone() for t in ctx.saved_tensors]
        parameters, saved = others[: len(needs_parameters)], others[len(needs_parameters) :]
        grad = grad.resolve_neg().contiguous()
        # The library has no second derivatives (`create_graph=True`), and takes one gradient, not a batch of them.
        if torch.is_grad_enabled() or is_batched(grad) or not is_readable(grad):
            return None, *_differentiate_torch(by_torch, [x, *parameters], [needs_x, *needs_parameters], grad)
        # 1. Make the library's weights again, in autograd. 2. The library computes the gradients of input and weights.
        # 3. Autograd computes the gradients of the parameters from those of the weights (the chain rule).
        with torch.enable_grad():
            leaves = [p if p is None else p.detach().requires_grad_(n) for p, n in zip(parameters, needs_parameters)]
            weights = make_weights(*leaves)
        detached = [w if w is None else w.detach() for w in weights]
        needs_weights = [w is not None and w.requires_grad for w in weights]
        # `prepared` of the forward is not kept, because it holds packed weights. The cache usually has them.
        prepared = computation.prepare(x.shape, parameters, make_weights)
        needed = needs_x, *needs_weights
        grad_x, *grad_weights = computation.backward(grad, needed, x, prepared, detached, *saved, **call)
        inputs: Any = [leaf for leaf, n in zip(leaves, needs_parameters) if n]
        outputs: Any = [w for w, n in zip(weights, needs_weights) if n]
        grad_outputs = [g for g, n in zip(grad_weights, needs_weights) if n]
        grad_inputs = iter(torch.autograd.grad(outputs, inputs, grad_outputs, allow_unused=True) if inputs else ())
        return None, grad_x if needs_x else None, *(next(grad_inputs) if n else None for n in needs_parameters)


def _differentiate_torch(
    function: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], needed: Sequence[bool], grad: Tensor
) -> list[Optional[Tensor]]:
    """Return the gradients of `function(*tensors)` for the tensors; None: no gradient is needed."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Gradients are for views: `x` may depend on a weight too, where two layers share it.
        views = [t.view_as(t) if t is not None and n else t for t, n in zip(tensors, needed)]
        y = _outside_vmap(function, *views) if is_batched(grad) else function(*views)
        y = y.view(grad.shape)  # some layers return tokens without the shape of the map
    inputs = [view for view, n in zip(views, needed) if n]
    gradients = iter(
        torch.autograd.grad(y, inputs, grad, create_graph=create_graph, allow_unused=True)  # type: ignore[arg-type]
    )
    return [next(gradients) if n else None for n in needed]


def _outside_vmap(function: Callable[..., Tensor], *tensors: Optional[Tensor]) -> Tensor:
    """Call a function in a new thread, which is outside vmap: vmap forbids the random numbers of drop path."""

    def call() -> Tensor:
        with torch.enable_grad():
            return function(*tensors)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()
