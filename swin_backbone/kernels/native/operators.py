"""The library's computations of layers as operators of torch, which graphs and dispatch modes record.

torch.compile, torch.export and AOTInductor do not look inside an operator. An operator has a kernel for CPUs, shapes
for fake tensors, and a backward pass, which is an operator too.

Layout: see `computations.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ...models.windows import Windows
from .computations import BlockComputation, BlockSettings, BlockWeights, OutputNormComputation, ProjectionComputation
from .interface import SwinComputation, Weights, as_given
from .memory import Cache, find_weight_cache

TORCH_OPS = torch.library.Library('swin_backbone', 'FRAGMENT')
FindCache = Callable[[Tensor], Cache]


class Schema(NamedTuple):
    """The arguments of an operator of torch after the input: weights, other tensors, settings.

    Attributes:
        weights: names, in the order of the gradients.
        others: names of tensors without gradients.
        settings: in torch's language of schemas.
        make_computation: `make_computation(shape, find_cache, weights, *others, *settings)`; the shape is the input's.
            `find_cache(weight)` returns the cache of packed weights.
    """

    weights: Sequence[str]
    others: Sequence[str]
    settings: str
    make_computation: Callable[..., SwinComputation[Any]]

    def read_arguments(
        self, x: Tensor, arguments: Sequence[Any], find_cache: FindCache = lambda _: {}
    ) -> tuple[SwinComputation[Any], Weights]:
        """Return the computation and the weights of a call. The arguments are those after the input."""
        weights, others = arguments[: len(self.weights)], arguments[len(self.weights) :]
        return self.make_computation(x.shape, find_cache, weights, *others), weights


def register_operator(name: str, schema: Schema) -> None:
    """Register an operator of torch, `torch.ops.swin_backbone.NAME(x, *arguments)`, and its backward pass.

    The first output is the layer's. The second is what the backward pass takes. All floating numbers are float32.
    """
    full_name, backward_name, tensors = f'swin_backbone::{name}', f'{name}_backward', [*schema.weights, *schema.others]
    arguments = f'Tensor x, {"".join(f"Tensor? {tensor}, " for tensor in tensors)}{schema.settings}'
    TORCH_OPS.define(f'{name}({arguments}) -> (Tensor, Tensor)')
    TORCH_OPS.define(f'{backward_name}(Tensor grad, Tensor saved, bool[] needed, {arguments}) -> Tensor[]')

    def forward(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        computation, weights = schema.read_arguments(x, arguments, find_weight_cache)
        y, *saved = computation.forward(x, computation.prepare(x.shape, weights, as_given))
        return y, saved[0] if saved else x.new_empty(0, dtype=torch.uint8)

    def backward(grad: Tensor, saved: Tensor, needed: Sequence[bool], x: Tensor, *arguments: Any) -> list[Any]:
        computation, weights = schema.read_arguments(x, arguments, find_weight_cache)
        prepared = computation.prepare(x.shape, weights, as_given)
        saved_tensors = [saved] if len(saved) else []
        gradients = computation.backward(grad.contiguous(), needed, x, prepared, weights, saved_tensors)
        return [gradient if is_needed else x.new_empty(0) for gradient, is_needed in zip(gradients, needed)]

    def fake_forward(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        computation, weights = schema.read_arguments(x, arguments)
        shapes = computation.infer_shapes(x.shape, *weights)
        return x.new_empty(shapes.output), x.new_empty(shapes.saved_bytes, dtype=torch.uint8)

    def fake_backward(grad: Tensor, saved: Tensor, needed: Sequence[bool], x: Tensor, *arguments: Any) -> list[Tensor]:
        computation, weights = schema.read_arguments(x, arguments)
        shapes = computation.infer_shapes(x.shape, *weights).gradients
        return [x.new_empty(shape if is_needed else (0,)) for shape, is_needed in zip(shapes, needed)]

    def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        first_setting = 1 + len(tensors)
        ctx.save_for_backward(*inputs[:first_setting], output[1])
        ctx.settings = inputs[first_setting:]

    def differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Optional[Tensor], ...]:
        *inputs, saved = ctx.saved_tensors
        needed = ctx.needs_input_grad
        run = getattr(torch.ops.swin_backbone, backward_name)
        gradients = run(grad, saved, needed[: 1 + len(schema.weights)], *inputs, *ctx.settings)
        missing = [None] * (len(needed) - len(gradients))
        return tuple(gradient if is_needed else None for gradient, is_needed in zip([*gradients, *missing], needed))

    TORCH_OPS.impl(name, forward, 'CPU')
    TORCH_OPS.impl(backward_name, backward, 'CPU')
    torch.library.register_fake(full_name, fake_forward, lib=TORCH_OPS)
    torch.library.register_fake(f'{full_name}_backward', fake_backward, lib=TORCH_OPS)
    torch.library.register_autograd(full_name, differentiate, setup_context=save_inputs, lib=TORCH_OPS)
    torch.library.register_autograd(f'{full_name}_backward', _differentiate_twice, lib=TORCH_OPS)


def _differentiate_twice(*_: Any) -> Any:
    raise RuntimeError("The compiled library has no second derivatives in a graph: set backend='torch'.")


def _make_block(
    shape: Sequence[int],
    find_cache: FindCache,
    weights: Sequence[Any],
    drop_path_2B: Optional[Tensor],
    window: Sequence[int],
    shift: Sequence[int],
    mask_padding: bool,
    pads_first: bool,
    scale: float,
    eps: Sequence[float],
    dtype: torch.dtype,
    saves_activations: bool,
) -> SwinComputation[Any]:
    w = BlockWeights(*weights)
    window_size, heads, hidden = (window[0], window[1]), w.position_bias_hNN.shape[0], w.fc1_weight.shape[0]
    windows = Windows(shape[1], shape[2], window_size, (shift[0], shift[1]), mask_padding)
    # `bias_window` is unused: the position bias is an input here.
    settings = BlockSettings(heads, hidden, scale, tuple(eps), window_size, pads_first)
    cache = find_cache(w.qkv_weight)
    computation = BlockComputation(settings, windows, dtype, cache, saves_activations, drop_path_2B=drop_path_2B)
    return computation._replace(saved_capacity=computation.bound_saved_bytes(shape, *w))


def _make_projection(
    _: Sequence[int],
    find_cache: FindCache,
    weights: Sequence[Any],
    is_merging: bool,
    eps: Optional[float],
    post_norm: bool,
    dtype: torch.dtype,
    has_gradients: bool,
) -> SwinComputation[Any]:
    return ProjectionComputation(is_merging, eps, post_norm, dtype, find_cache(weights[0]), has_gradients)


# In the order of `SwinComputation.list_operator_arguments`, and of the parameters of the functions that read them.
SCHEMAS = {
    'block': Schema(
        BlockWeights._fields,
        ['drop_path_2B'],
        'int[] window, int[] shift, bool mask_padding, bool pads_first, float scale, float[] eps, ScalarType dtype, '
        'bool saves_activations',
        _make_block,
    ),
    'project': Schema(
        ['weight', 'bias', 'norm_weight', 'norm_bias'],
        [],
        'bool is_merging, float? eps, bool post_norm, ScalarType dtype, bool has_gradients',
        _make_projection,
    ),
    'normalise_output': Schema(
        ['weight', 'bias'], [], 'float eps', lambda _, find_cache, weights, eps: OutputNormComputation(eps)
    ),
}

for _name, _schema in SCHEMAS.items():
    register_operator(_name, _schema)
