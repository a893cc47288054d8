"""Simplify patterns of an ONNX graph, to avoid copies in runtimes. The results do not change.

Layout: L windows, h heads, N places of a window, d channels of a head, C = h*d.
"""

from typing import Any, Optional

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

HEADS_FIRST = [2, 0, 3, 1, 4]  # (L, N, 3, h, d) to (3, L, h, N, d)


def simplify(model: ir.Model) -> None:
    """Split the qkv projection into three, and apply norms to three-dimensional tokens.

    Three projections make slices of query, key and value unnecessary, and the scale goes into the weights. OpenVINO
    computes the norm of a four-dimensional map in three steps, and of tokens in one step.
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
    tensor: Any = ir.tensor(np.array([0, -1, int(x.shape[-1])]), name=f'{y.name}_tokens_shape')
    target: Any = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([3]), const_value=tensor)
    graph.register_initializer(target)
    tokens = ir.node('Reshape', [x, target])
    shape = ir.node('Shape', [x])
    back = ir.node('Reshape', [y, shape.outputs[0]])
    for node, name in ((tokens, 'tokens'), (shape, 'shape'), (back, 'map')):
        node.outputs[0].name = f'{y.name}_{name}'
    for node in (tokens, back):
        node.outputs[0].dtype = x.dtype
    back.outputs[0].shape, y.shape = y.shape, None
    y.replace_all_uses_with(back.outputs[0])
    back.replace_input_with(0, y)
    norm.replace_input_with(0, tokens.outputs[0])
    graph.insert_before(norm, [tokens, shape])
    graph.insert_after(norm, [back])


def _split_projection(graph: ir.Graph, transpose: Any) -> None:
    reshape = transpose.inputs[0].producer()
    add = _producer(reshape, 0, 'Add')
    matmul = _producer(add, 0, 'MatMul')
    takes: list[Any] = [_slice_of(use.node) for use in transpose.outputs[0].uses()]
    if matmul is None or None in takes or sorted(index for index, _ in takes) != [0, 1, 2]:
        return
    weight, bias = (_constant(value) for value in (matmul.inputs[1], add.inputs[1]))
    if weight is None or bias is None or bias.ndim != 1 or len(matmul.outputs[0].shape) != 3:
        return
    heads, width = (int(transpose.outputs[0].shape[axis]) for axis in (2, 4))
    channels = heads * width
    for index, squeezed in takes:
        part = slice(index * channels, (index + 1) * channels)
        factor, result = 1.0, squeezed
        uses = squeezed.uses()
        if index == 0 and len(uses) == 1 and uses[0].node.op_type == 'Mul':
            scale = _constant(uses[0].node.inputs[1])
            if scale is not None and scale.size == 1:
                factor, result = scale.item(), uses[0].node.outputs[0]
        name = f'{matmul.outputs[0].name}_{"qkv"[index]}'
        tensors: Any = [
            ir.tensor(np.ascontiguousarray(weight[:, part] * weight.dtype.type(factor)), name=f'{name}_weight'),
            ir.tensor(np.ascontiguousarray(bias[part] * weight.dtype.type(factor)), name=f'{name}_bias'),
            ir.tensor(np.array([0, 0, heads, width]), name=f'{name}_shape'),
        ]
        values: Any = [
            ir.Value(name=one.name, type=ir.TensorType(one.dtype), shape=ir.Shape(one.shape), const_value=one)
            for one in tensors
        ]
        for value in values:
            graph.register_initializer(value)
        product = ir.node('MatMul', [matmul.inputs[0], values[0]])
        summed = ir.node('Add', [product.outputs[0], values[1]])
        shaped = ir.node('Reshape', [summed.outputs[0], values[2]])
        turned = ir.node('Transpose', [shaped.outputs[0]], attributes=dict(perm=[0, 2, 1, 3]))
        nodes = [product, summed, shaped, turned]
        for node, ending in zip(nodes, ('product', 'sum', 'heads', '')):
            node.outputs[0].name = f'{name}_{ending}' if ending else name
            node.outputs[0].dtype = matmul.outputs[0].dtype
        turned.outputs[0].shape = result.shape
        graph.insert_after(transpose, nodes)
        result.replace_all_uses_with(turned.outputs[0])


def _producer(node: Any, index: int, kind: str) -> Any:
    """Return the producer of an input of `node` if the producer has this kind and a single use."""
    value: Any = node.inputs[index] if node is not None else None
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == kind and len(value.uses()) == 1 else None


def _slice_of(node: Any) -> Optional[tuple[int, Any]]:
    """Return the index of q, k or v (0, 1 or 2) in a Slice before a Squeeze, and the value; None: no match."""
    if node.op_type != 'Slice' or len(node.outputs[0].uses()) != 1:
        return None
    (use,) = node.outputs[0].uses()
    start = _constant(node.inputs[1])
    if use.node.op_type != 'Squeeze' or start is None or start.size != 1:
        return None
    return int(start.item()), use.node.outputs[0]


def _constant(value: Any) -> Optional[NDArray[Any]]:
    return value.const_value.numpy() if value is not None and value.const_value is not None else None
