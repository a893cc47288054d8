"""Numbers of operations of the library's operators, for `torch.utils.flop_counter`, which counts matrix products.

Layout: see `computations.py`; T tokens of all maps, P places of all windows.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .computations import BlockComputation, BlockWeights, ProjectionComputation
from .operators import SCHEMAS, Schema

Counts = tuple[list[int], int]  # of the product with each weight, and of the products in attention


def _count(schema: Schema, x: Tensor, arguments: Sequence[Any]) -> Counts:
    """Return the operations of a forward."""
    computation, weights = schema.read_arguments(x, arguments)
    if isinstance(computation, BlockComputation):
        tensors: Any = weights
        w = BlockWeights(*tensors)
        rows, columns = computation.windows.count_windows()
        N, C = math.prod(computation.windows.window_size), x.shape[3]
        T, P = math.prod(x.shape[:3]), x.shape[0] * rows * columns * N
        return [2 * tokens * weight.numel() for tokens, weight in zip((P, T, T, T), w.linear)], 2 * 2 * P * N * C
    y_shape = computation.infer_shapes(x.shape, *weights).output
    is_projection = isinstance(computation, ProjectionComputation)
    return [2 * math.prod(y_shape[:3]) * weights[0].numel()] if is_projection and weights[0] is not None else [], 0


def _forward(schema: Schema, x: Tensor, *arguments: Any, **_: Any) -> int:
    products, attention = _count(schema, x, arguments)
    return sum(products) + attention


def _backward(
    schema: Schema, grad: Tensor, saved: Tensor, needed: Sequence[bool], x: Tensor, *arguments: Any, **_: Any
) -> int:
    products, attention = _count(schema, x, arguments)
    weight_gradients = sum(product for product, is_needed in zip(products, needed[1:]) if is_needed)
    return weight_gradients + (sum(products) + 2 * attention if needed[0] or attention else 0)


for _name, _schema in SCHEMAS.items():
    for _operator, _formula in ((_name, _forward), (f'{_name}_backward', _backward)):
        register_flop_formula(getattr(torch.ops.swin_backbone, _operator), get_raw=True)(partial(_formula, _schema))
