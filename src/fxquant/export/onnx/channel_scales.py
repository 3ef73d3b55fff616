"""Inputs of depthwise convolutions with a scale for each channel, in the form that runtimes have kernels for.

    QuantizeLinear(x, scale) -> DequantizeLinear(scale) -> Conv(w)            scale: one number for each channel
    QuantizeLinear(x / scale, 1) -> DequantizeLinear(1) -> Conv(w * scale)    the same integers

The scale goes into that of the weight. ONNX Runtime takes the first form for one that it has kernels for, and fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before

Weights = list[tuple[ir.Node, ir.Node]]  # convolutions, each with the node that dequantizes its weight


def move_channel_scales(graph: ir.Graph) -> None:
    """Rewrite the tensors of which all readers are depthwise convolutions, in place."""
    for node in list(graph):
        if node.op_type == "QuantizeLinear" and (scale := _constant(node.inputs[1])) is not None and scale.size > 1:
            zero = _constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1, np.uint8)
            pairs = list(_dequantizes(node))
            weights = [found for pair in pairs for found in _readers(pair, scale.size)]
            if zero is not None and (zero == zero[0]).all() and pairs and None not in weights:
                _move(graph, node, pairs, scale, zero, [found for found in weights if found is not None])


def _constant(value: ir.Value | None) -> Array | None:
    """Return an initializer, or one that is cast."""
    found = value_of(value)
    made = value.producer() if value is not None else None
    if found is None and made is not None and made.op_type == "Cast":
        found = value_of(made.inputs[0])
        dtype = made.attributes.get_int("to", 0)
        return None if found is None else found.astype(ir.DataType(dtype).numpy())
    return found


def _dequantizes(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that dequantize, behind the clip of a grid of fewer bits."""
    for user in node.outputs[0].uses():
        if user.node.op_type == "Clip":
            yield from _dequantizes(user.node)
        else:
            yield user.node


def _readers(node: ir.Node, channels: int) -> Iterator[tuple[ir.Node, ir.Node] | None]:
    """Yield the depthwise convolutions that read a tensor; None for any other reader."""
    if node.op_type != "DequantizeLinear" or node.outputs[0].is_graph_output():
        yield None
        return
    for user in node.outputs[0].uses():
        conv = user.node
        weight = dequantize_before(conv.inputs[1]) if conv.op_type == "Conv" and user.idx == 0 else None
        scale = value_of(weight.inputs[1]) if weight is not None else None
        by_output = weight is not None and weight.attributes.get_int("axis", 1) == 0
        fits = by_output and scale is not None and scale.ndim == 1 and scale.size % channels == 0
        yield (conv, weight) if fits and weight and conv.attributes.get_int("group", 1) == channels else None


def _move(graph: ir.Graph, node: ir.Node, pairs: list[ir.Node], scale: Array, zero: Array, weights: Weights) -> None:
    name, x = node.name or "channels", node.inputs[0]
    assert x is not None
    shape = (-1, *(1,) * (len(x.shape) - 2 if x.shape is not None else 2))
    inverse = add_initializer(graph, f"{name}_inverse", (1.0 / scale.astype(np.float32)).reshape(shape))
    product = ir.node("Mul", [x, inverse])
    product.outputs[0].dtype, product.outputs[0].shape = x.dtype, x.shape
    graph.insert_before(node, product)
    node.replace_input_with(0, product.outputs[0])
    one = add_initializer(graph, f"{name}_one", np.array(1.0, np.float32))
    start = add_initializer(graph, f"{name}_zero", np.array(zero[0]))
    for each in dict.fromkeys((node, *pairs)):
        each.replace_input_with(1, one)
        each.replace_input_with(2, start)
        each.attributes.pop("axis", None)
    for conv, weight in dict.fromkeys(weights):
        own = value_of(weight.inputs[1])
        assert own is not None and weight.inputs[1] is not None
        both = (own * np.repeat(scale, own.size // scale.size)).astype(np.float32)
        inputs = [weight.inputs[0], add_initializer(graph, f"{weight.inputs[1].name}_{name}", both), *weight.inputs[2:]]
        made = ir.node("DequantizeLinear", inputs, dict(weight.attributes))
        made.outputs[0].dtype, made.outputs[0].shape = weight.outputs[0].dtype, weight.outputs[0].shape
        graph.insert_before(conv, made)
        conv.replace_input_with(1, made.outputs[0])
