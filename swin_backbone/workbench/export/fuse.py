"""Simplify patterns of an ONNX graph, to avoid copies in runtimes. The results do not change.

Layout: L windows, h heads, N places of a window, d channels of a head, C = h*d.
"""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

HEADS_FIRST = [2, 0, 3, 1, 4]  # (L, N, 3, h, d) to (3, L, h, N, d)


def simplify(model: ir.Model) -> None:
    """Split the qkv projection into three, and apply norms to three-dimensional tokens.

    Three projections make slices of query, key and value unnecessary. OpenVINO computes the norm of a four-dimensional
    map in three steps, and of tokens in one step.
    """
    node: Any
    for node in list(model.graph):
        for value in filter(None, node.inputs):
            # onnxscript fuses Clips, and does not register the limits of a second Clip on an input
            is_loose = value.const_value is not None and value.producer() is None and not value.is_graph_input()
            if is_loose and value.name not in model.graph.initializers:
                model.graph.register_initializer(value)
        if node.op_type == 'LayerNormalization' and node.inputs[0].shape is not None and len(node.inputs[0].shape) == 4:
            _norm_tokens(model.graph, node)
        if node.op_type == 'Transpose' and list(node.attributes['perm'].value) == HEADS_FIRST:
            _split_projection(model.graph, node)


def _norm_tokens(graph: ir.Graph, norm: Any) -> None:
    """Compute a LayerNormalization of (B, H, W, C) on (B, H*W, C)."""
    x, y = norm.inputs[0], norm.outputs[0]
    tokens_shape = _add_initializer(graph, f'{y.name}_tokens_shape', np.array([0, -1, int(x.shape[-1])]))
    tokens = _make_node('Reshape', [x, tokens_shape], f'{y.name}_tokens', x.dtype)
    shape = _make_node('Shape', [x], f'{y.name}_shape', ir.DataType.INT64)
    back = _make_node('Reshape', [y, shape.outputs[0]], f'{y.name}_map', x.dtype)
    back.outputs[0].shape = y.shape
    y.shape = None
    y.replace_all_uses_with(back.outputs[0])
    back.replace_input_with(0, y)
    norm.replace_input_with(0, tokens.outputs[0])
    graph.insert_before(norm, [tokens, shape])
    graph.insert_after(norm, [back])


def _split_projection(graph: ir.Graph, transpose: Any) -> None:
    """Compute query, key and value (L, h, N, d) by three projections of tokens (L, N, C)."""
    add = transpose.inputs[0].producer().inputs[0].producer()
    matmul = add.inputs[0].producer() if add is not None and add.op_type == 'Add' else None
    slices = [use.node for use in transpose.outputs[0].uses()]
    if matmul is None or matmul.op_type != 'MatMul' or any(node.op_type != 'Slice' for node in slices):
        return
    weight, bias = _find_constant(matmul.inputs[1]), _find_constant(add.inputs[1])
    if weight is None or bias is None:
        return
    heads, width = (int(transpose.outputs[0].shape[axis]) for axis in (2, 4))
    for cut in slices:
        start: Any = _find_constant(cut.inputs[1])
        ((squeeze, _),) = cut.outputs[0].uses()
        result = squeeze.outputs[0]
        dtype = matmul.outputs[0].dtype
        columns = slice(start.item() * heads * width, (start.item() + 1) * heads * width)
        name = f'{matmul.outputs[0].name}_{"qkv"[start.item()]}'
        own_weight = _add_initializer(graph, f'{name}_weight', weight[:, columns])
        own_bias = _add_initializer(graph, f'{name}_bias', bias[columns])
        shape = _add_initializer(graph, f'{name}_shape', np.array([0, 0, heads, width]))
        product = _make_node('MatMul', [matmul.inputs[0], own_weight], f'{name}_product', dtype)
        total = _make_node('Add', [product.outputs[0], own_bias], f'{name}_sum', dtype)
        shaped = _make_node('Reshape', [total.outputs[0], shape], f'{name}_heads', dtype)
        turned = _make_node('Transpose', [shaped.outputs[0]], name, dtype, perm=[0, 2, 1, 3])
        turned.outputs[0].shape = result.shape
        graph.insert_after(transpose, [product, total, shaped, turned])
        result.replace_all_uses_with(turned.outputs[0])


def _make_node(op_type: str, inputs: Sequence[Any], name: str, dtype: Any, **attributes: Any) -> Any:
    """Return a node whose output has a name and a type, which the quantization reads."""
    node: Any = ir.node(op_type, inputs, attributes=attributes)
    node.outputs[0].name, node.outputs[0].dtype = name, dtype
    return node


def _add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> Any:
    tensor: Any = ir.tensor(np.ascontiguousarray(array), name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def _find_constant(value: Any) -> Optional[NDArray[Any]]:
    return value.const_value.numpy() if value.const_value is not None else None
