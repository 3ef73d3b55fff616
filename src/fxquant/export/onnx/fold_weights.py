"""Weights in the layout and width in which they are used.

MatMul(x, Transpose(DequantizeLinear(w)))  ->  MatMul(x, DequantizeLinear(w'))       w' = w transposed
DequantizeLinear in blocks, 4-bit values   ->  the same on an INT4 / UINT4 initializer
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of

_NARROW = {
    np.dtype(np.int8): (ir.DataType.INT4, -8, 7),
    np.dtype(np.uint8): (ir.DataType.UINT4, 0, 15),
}


def fold_weights(graph: ir.Graph) -> None:
    """Rewrite the dequantized weights of a graph, in place."""
    for node in list(graph):
        if node.op_type == "Transpose":
            _fold_transpose(graph, node)
    for node in list(graph):
        if node.op_type == "DequantizeLinear" and "block_size" in node.attributes:
            _pack(graph, node)


def _fold_transpose(graph: ir.Graph, node: ir.Node) -> None:
    source = node.inputs[0]
    made = source.producer() if source is not None else None
    if made is None or made.op_type != "DequantizeLinear" or node.attributes.get_ints("perm") != (1, 0):
        return
    arrays = [value_of(value) for value in made.inputs]
    if any(array is None for array in arrays):
        return
    inputs = [
        add_initializer(graph, f"{value.name}_transposed", np.ascontiguousarray(array.T)) if array.ndim == 2 else value
        for value, array in zip(made.inputs, arrays, strict=True)
        if value is not None and array is not None
    ]
    attributes = dict(made.attributes) | {"axis": ir.AttrInt64("axis", 1 - made.attributes.get_int("axis", 1) % 2)}
    new = ir.Node("", "DequantizeLinear", inputs, attributes.values())
    new.outputs[0].dtype, new.outputs[0].shape = node.outputs[0].dtype, node.outputs[0].shape
    graph.insert_before(node, new)
    node.outputs[0].replace_all_uses_with(new.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _pack(graph: ir.Graph, node: ir.Node) -> None:
    for index in (0, 2):
        value = node.inputs[index]
        array = value_of(value)
        if value is None or array is None or array.dtype not in _NARROW:
            return
        _, low, high = _NARROW[array.dtype]
        if array.min() < low or array.max() > high:
            return
    for index in (0, 2):
        value = node.inputs[index]
        array = value_of(value)
        assert value is not None and array is not None
        node.replace_input_with(index, add_initializer(graph, f"{value.name}_4bit", _narrow(array)))


def _narrow(array: Array) -> ir.TensorProtocol:
    dtype = _NARROW[array.dtype][0]
    return ir.tensor(array.astype(dtype.numpy()), dtype=dtype)
