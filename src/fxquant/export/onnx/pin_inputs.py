"""Round inputs of a model in an order that all runtimes keep, where its scales are clear of ties (numerics/ties.py).

    QuantizeLinear(x, scale, zero)    ->    QuantizeLinear(Round(x * (1 / scale)), 1, zero)

Integers inside of such a model are the same in every runtime, so all that is left is how the first ones are made: by
a division, as ONNX says, by a product, as torch's op does, with the zero point before or behind the rounding. Values
beside a tie, one in a hundred thousand, would be a step off, and most pictures have one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import torch

from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before
from fxquant.numerics.ties import are_clear

_MOVES = frozenset(("Pad", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Identity", "Concat"))
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_ON_THE_WAY = frozenset(("Relu", "Clip", "Add", "Reshape"))  # from a product to where it is rounded


def pin_inputs(graph: ir.Graph) -> None:
    """Rewrite what quantizes the inputs of a graph, in place, if a product that reads it is clear of ties."""
    for node in list(graph):
        if node.op_type != "QuantizeLinear" or not _is_of_inputs(graph, node.inputs[0]):
            continue
        scale = value_of(node.inputs[1])
        if scale is None or scale.size != 1 or np.frexp(scale.item())[0] == 0.5:
            continue
        if any(_is_clear(scale, product) for product in _products(node)):
            _pin(graph, node, scale)


def _is_of_inputs(graph: ir.Graph, value: ir.Value | None) -> bool:
    """Tell whether a tensor has values of the graph's inputs alone, in other places."""
    while value is not None and not value.is_graph_input():
        made = value.producer()
        if made is None or made.op_type not in _MOVES:
            return False
        value = made.inputs[0]
    return value is not None and value.dtype == ir.DataType.FLOAT


def _products(quantize: ir.Node) -> Iterator[ir.Node]:
    for user in quantize.outputs[0].uses():
        if user.node.op_type == "DequantizeLinear":
            yield from (each.node for each in user.node.outputs[0].uses() if each.node.op_type in _PRODUCTS)


def _is_clear(scale: Array, product: ir.Node) -> bool:
    weight, rounded = dequantize_before(product.inputs[1], ("Transpose",)), _rounded(product)
    parts = [value_of(node.inputs[1]) for node in (weight, rounded) if node is not None]
    if len(parts) < 2 or any(part is None for part in parts):
        return False
    of_weight, of_output = (part.astype(np.float64).ravel() for part in parts if part is not None)
    if of_output.size not in (1, of_weight.size):
        return False
    return are_clear(torch.from_numpy(scale.astype(np.float64) * of_weight / of_output))


def _rounded(node: ir.Node) -> ir.Node | None:
    """Return what rounds the result of a product."""
    while len(users := node.outputs[0].uses()) == 1:
        node = users[0].node
        if node.op_type == "QuantizeLinear":
            return node
        if node.op_type not in _ON_THE_WAY:
            return None
    return None


def _pin(graph: ir.Graph, node: ir.Node, scale: Array) -> None:
    x, name = node.inputs[0], node.name or "input"
    assert x is not None
    inverse = add_initializer(graph, f"{name}_inverse", np.array(1.0 / scale.item(), np.float32))
    one = add_initializer(graph, f"{name}_one", np.array(1.0, np.float32))
    product = ir.node("Mul", [x, inverse])
    whole = ir.node("Round", [product.outputs[0]])
    for made in (product, whole):
        made.outputs[0].dtype, made.outputs[0].shape = x.dtype, x.shape
        graph.insert_before(node, made)
    node.replace_input_with(0, whole.outputs[0])
    node.replace_input_with(1, one)
