"""From a module to a call of the compiled library: recipe, plan, output and gradients.

A recipe is how the library computes a module. `kernels/swin/` and `kernels/foreign/` read it of the module. It makes a
plan for inputs of a shape. A `LayerPlan` calls the library, with gradients in an `autograd.Function`; in a graph and
under a dispatch mode, an `OperatorPlan` calls an operator of torch.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Optional, Protocol, Union

import torch
from torch import Tensor, nn

from ...modes import may_be_batched, needs_torch_op
from ...replace import Plan, Reason, Unsupported
from ..changes import forget_readings, read_once
from . import operators as operators  # registers the operators of torch
from .availability import find_reason_against
from .interface import Computation, MakeWeights, SwinComputation, Weights, as_given
from .memory import is_readable


class Recipe(Protocol):
    """How the library computes a module."""

    def plan(self, module: Any, shape: Sequence[int]) -> Any:
        """Return the plan of the module for inputs of a shape, see `replace.Plan`; or raise `Unsupported`."""


class LayerRecipe(NamedTuple):
    """How the library computes a layer.

    Attributes:
        by_torch: `by_torch(layer, x, *parameters)` computes the output in torch operations, for second derivatives and
            batches of gradients. It repeats random numbers for the argument `random_state`, see `forward_by_torch`.
        parameters: of the layer.
        make_weights: see `Computation.prepare`.
        draw_drop_path: draws the factors of both branches of a block for a batch of maps, see
            `BlockComputation.drop_path_2B`; None: nothing is drawn.
    """

    computation: SwinComputation[Any]
    by_torch: Callable[..., Tensor]
    parameters: Weights
    make_weights: MakeWeights = as_given
    draw_drop_path: Optional[Callable[[Tensor], Optional[Tensor]]] = None

    def plan(self, module: nn.Module, shape: Sequence[int]) -> Union['LayerPlan', 'OperatorPlan']:
        """Return the plan of the layer for inputs of a shape; or raise `Unsupported`."""
        if not needs_torch_op():
            return LayerPlan(self, module, self.computation.prepare(shape, self.parameters, self.make_weights))
        weights = self.make_weights(*self.parameters)
        self.computation.check(shape, *weights)
        return OperatorPlan(self, weights)


class LayerPlan(NamedTuple):
    """A layer that is ready to run, with gradients if autograd records; see `replace.Plan`.

    Attributes:
        prepared: of `Computation.prepare`, for the shape of the input.
    """

    recipe: LayerRecipe
    layer: nn.Module
    prepared: Any

    def __call__(self, x: Tensor, out: Optional[Tensor] = None) -> Tensor:
        """Return the output.

        Args:
            out: memory for the output of a block, see `BlockComputation.out`.
        """
        recipe, x, random_state = self.recipe, x.float(), None
        computation: Any = recipe.computation
        if recipe.draw_drop_path is not None:
            if torch.is_grad_enabled():  # 5 kB, by which `by_torch` repeats the drop path of the forward
                random_state = torch.get_rng_state()
            computation = computation._replace(drop_path_2B=recipe.draw_drop_path(x))
        if out is not None:
            computation = computation._replace(out=out)
        if not torch.is_grad_enabled():
            return computation.forward(x, self.prepared)[0]
        by_torch = partial(recipe.by_torch, self.layer, random_state=random_state)
        return _Function.apply(computation, self.prepared, recipe.make_weights, by_torch, x, *recipe.parameters)  # type: ignore[no-untyped-call]


class OperatorPlan(NamedTuple):
    """A layer that is ready to run as an operator of torch; see `replace.Plan`."""

    recipe: LayerRecipe
    weights: Weights

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output."""
        recipe, x = self.recipe, x.float()
        computation: Any = recipe.computation
        if recipe.draw_drop_path is not None:
            computation = computation._replace(drop_path_2B=recipe.draw_drop_path(x))
        operator = getattr(torch.ops.swin_backbone, computation.operator_name)
        return operator(x, *computation.list_operator_arguments(self.weights))[0]


def plan_module(read: Callable[[Any, Tensor], Recipe], module: nn.Module, x: Tensor) -> Union[Plan, Reason]:
    """Return the plan of a module for `x`, or the reason why there is none; see `replace.Replacement`.

    Args:
        read: returns the recipe of a module for inputs like `x`, or raises `Unsupported`; see `read_once`.
    """
    reason = find_reason_against(x)
    if reason is not None:
        return reason
    recipe = None
    try:
        recipe = read_once(read, module, x)
        return recipe.plan(module, x.shape)
    except Unsupported as error:
        if recipe is not None:
            forget_readings(module)  # the recipe has old sizes: `list_state` shows no `.data` of another shape
        return str(error)


def run_computation(
    computation: Computation[Any], by_torch: Callable[..., Tensor], x: Tensor, *weights: Optional[Tensor]
) -> Tensor:
    """Return the output of a computation, with gradients if autograd records; or raise `Unsupported`.

    Args:
        by_torch: `by_torch(x, *weights)` computes the output in torch operations.
        x: in the dtype of the computation.
    """
    prepared = computation.prepare(x.shape, weights, as_given)
    if not torch.is_grad_enabled():
        return computation.forward(x, prepared)[0]
    return _Function.apply(computation, prepared, as_given, by_torch, x, *weights)  # type: ignore[no-untyped-call]


class _Function(torch.autograd.Function):
    """A computation with gradients for `x` and the parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        computation: Computation[Any],
        prepared: Any,
        make_weights: MakeWeights,
        by_torch: Callable[..., Tensor],
        x: Tensor,
        *parameters: Optional[Tensor],
    ) -> Tensor:
        y, *saved = computation.forward(x, prepared)
        ctx.save_for_backward(x, *parameters, *saved)
        ctx.computation = computation
        ctx.make_weights = make_weights
        ctx.by_torch = by_torch
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        no_gradients, needed = [None] * 4, ctx.needs_input_grad[4:]  # the arguments before x have no gradients
        needs_x, *needs_parameters = needed
        # Hooks of saved tensors may return tensors at any address.
        x, *others = [t if t is None or is_readable(t) else t.clone() for t in ctx.saved_tensors]
        parameters, saved = others[: len(needs_parameters)], others[len(needs_parameters) :]
        grad = grad.resolve_neg().contiguous()
        # The library has no second derivatives (`create_graph=True`), and takes one gradient, not a batch of them.
        if torch.is_grad_enabled() or may_be_batched(grad) or not is_readable(grad):
            return *no_gradients, *_differentiate_by_torch(ctx.by_torch, [x, *parameters], needed, grad)
        # 1. Make the library's weights again, in autograd. 2. The library computes the gradients of input and weights.
        # 3. Autograd computes the gradients of the parameters from those of the weights (the chain rule).
        with torch.enable_grad():
            leaves = [p if p is None else p.detach().requires_grad_(n) for p, n in zip(parameters, needs_parameters)]
            weights = ctx.make_weights(*leaves)
        detached = [w if w is None else w.detach() for w in weights]
        needs_weights = [w is not None and w.requires_grad for w in weights]
        # `prepared` of the forward is not kept, because it holds packed weights. The cache usually has them.
        prepared = ctx.computation.prepare(x.shape, parameters, ctx.make_weights)
        grad_x, *grad_weights = ctx.computation.backward(grad, [needs_x, *needs_weights], x, prepared, detached, saved)
        outputs = [w for w, n in zip(weights, needs_weights) if n]
        grad_outputs = [g for g, n in zip(grad_weights, needs_weights) if n]
        grad_parameters = _differentiate(outputs, leaves, needs_parameters, grad_outputs)
        return *no_gradients, grad_x if needs_x else None, *grad_parameters


def _differentiate(
    outputs: Any, inputs: Sequence[Any], needed: Sequence[bool], grad_outputs: Any, create_graph: bool = False
) -> list[Optional[Tensor]]:
    """Return the gradients of the outputs for the inputs; None: no gradient is needed."""
    inputs = [tensor for tensor, is_needed in zip(inputs, needed) if is_needed]
    gradients: Any = ()
    if inputs:
        gradients = torch.autograd.grad(outputs, inputs, grad_outputs, create_graph=create_graph, allow_unused=True)
    remaining = iter(gradients)
    return [next(remaining) if is_needed else None for is_needed in needed]


def _differentiate_by_torch(
    function: Callable[..., Tensor], tensors: Sequence[Optional[Tensor]], needed: Sequence[bool], grad: Tensor
) -> list[Optional[Tensor]]:
    """Return the gradients of `function(*tensors)` for the tensors; None: no gradient is needed."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Gradients are taken for views, because `x` depends on a weight too if two layers share the weight.
        views = [t.view_as(t) if t is not None and n else t for t, n in zip(tensors, needed)]
        y = _call_outside_vmap(function, *views) if may_be_batched(grad) else function(*views)
        y = y.view(grad.shape)  # some layers return tokens without the shape of the map
    return _differentiate(y, views, needed, grad, create_graph)


def _call_outside_vmap(function: Callable[..., Tensor], *tensors: Optional[Tensor]) -> Tensor:
    """Call a function in a new thread, which is outside vmap: vmap forbids the random numbers of drop path."""

    def call() -> Tensor:
        with torch.enable_grad():
            return function(*tensors)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()
