"""The library's computations of layers as operators of torch, which graphs and dispatch modes record.

torch.compile, torch.export and AOTInductor do not look inside an operator. An operator has a kernel for CPUs, shapes
for fake tensors, a backward pass, which is an operator too, and a number of operations for torch's counter.

Layout: see `layers.py`.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from .layers import as_given
from .memory import cache_of_weight
from .schemas import SCHEMAS, Schema

LIBRARY = torch.library.Library('swin_backbone', 'FRAGMENT')


def register(name: str, schema: Schema) -> None:
    """Register an operator of torch, `torch.ops.swin_backbone.NAME(x, *weights, *settings)`, and its backward pass.

    The first output is the layer's, of the dtype of `x`. The second is what the backward pass takes.
    """
    count, full_name, backward_name = len(schema.weights), f'swin_backbone::{name}', f'{name}_backward'
    arguments = f'Tensor x, {"".join(f"Tensor? {weight}, " for weight in schema.weights)}{schema.settings}'.rstrip(', ')
    LIBRARY.define(f'{name}({arguments}) -> (Tensor, Tensor)')
    LIBRARY.define(f'{backward_name}(Tensor grad, Tensor saved, bool[] needed, {arguments}) -> Tensor[]')

    def forward(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        computation, weights = schema.make_computation(x, arguments, cache_of_weight)
        y, *saved = computation.compute(x, computation.prepare(x.shape, weights, as_given))
        return y, saved[0] if saved else x.new_empty(0, dtype=torch.uint8)

    def backward(grad: Tensor, saved: Tensor, needed: Sequence[bool], x: Tensor, *arguments: Any) -> list[Any]:
        computation, weights = schema.make_computation(x, arguments, cache_of_weight)
        prepared, stored = computation.prepare(x.shape, weights, as_given), [saved] if len(saved) else []
        gradients: Any = computation.gradients(grad.contiguous(), needed, x, prepared, weights, *stored)
        inputs = [x, *arguments]
        return [g.to(t.dtype).contiguous() if n else x.new_empty(0) for g, t, n in zip(gradients, inputs, needed)]

    def fake_forward(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        computation, weights = schema.make_computation(x, arguments)
        shapes = computation.shapes_of_results(x.shape, *weights)
        return x.new_empty(shapes.output), x.new_empty(shapes.stored, dtype=torch.uint8)

    def fake_backward(_: Tensor, saved: Tensor, needed: Sequence[bool], x: Tensor, *arguments: Any) -> list[Tensor]:
        computation, weights = schema.make_computation(x, arguments)
        shapes, inputs = computation.shapes_of_results(x.shape, *weights).gradients, [x, *arguments]
        return [t.new_empty(size) if n else x.new_empty(0) for size, t, n in zip(shapes, inputs, needed)]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[: 1 + count], output[1])
        ctx.settings = inputs[1 + count :]

    def differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Optional[Tensor], ...]:
        *tensors, saved = ctx.saved_tensors
        needed = ctx.needs_input_grad
        run = getattr(torch.ops.swin_backbone, backward_name)
        gradients = run(grad, saved, needed[: 1 + count], *tensors, *ctx.settings)
        missing = [None] * (len(needed) - len(gradients))
        return tuple(gradient if is_needed else None for gradient, is_needed in zip([*gradients, *missing], needed))

    LIBRARY.impl(name, forward, 'CPU')
    LIBRARY.impl(backward_name, backward, 'CPU')
    torch.library.register_fake(full_name, fake_forward, lib=LIBRARY)
    torch.library.register_fake(f'{full_name}_backward', fake_backward, lib=LIBRARY)
    torch.library.register_autograd(full_name, differentiate, setup_context=keep, lib=LIBRARY)
    torch.library.register_autograd(f'{full_name}_backward', _refuse, lib=LIBRARY)


def _refuse(*_: Any) -> Any:
    raise RuntimeError("The compiled library has no second derivatives in a graph: set backend='torch'.")


for _name, _schema in SCHEMAS.items():
    register(_name, _schema)
