"""Inputs of depthwise convolutions with a scale for each channel, in the form that runtimes have kernels for.

    QuantizeLinear(x, scale) -> DequantizeLinear(scale) -> Conv(w)            scale: one number for each channel
    QuantizeLinear(x / scale, 1) -> DequantizeLinear(1) -> Conv(w * scale)    the same integers

The scale goes into that of the weight. ONNX Runtime takes the first form for one that it has kernels for, and fails.
Where a convolution makes x, it is its weight and bias that are divided, so that it writes the integers as before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before

_HAIR = 1e-3  # of a step

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
    name = node.name or "channels"
    inverse = 1.0 / scale.astype(np.float32)
    node.replace_input_with(0, _divided_by_maker(graph, node, zero, inverse) or _divided(graph, node, inverse))
    one = add_initializer(graph, f"{name}_one", np.array(1.0, np.float32))
    start = add_initializer(graph, f"{name}_zero", np.array(zero[0]))
    for each in dict.fromkeys((node, *pairs)):
        each.replace_input_with(1, one)
        each.replace_input_with(2, start)
        each.attributes.pop("axis", None)
    for conv, weight in dict.fromkeys(weights):
        conv.replace_input_with(1, _rescaled(graph, weight, conv, scale))


def _divided(graph: ir.Graph, node: ir.Node, inverse: Array) -> ir.Value:
    """Return what a quantize reads times these factors, by an op of its own."""
    x = node.inputs[0]
    assert x is not None
    shape = (-1, *(1,) * (len(x.shape) - 2 if x.shape is not None else 2))
    factors = add_initializer(graph, f"{node.name or 'channels'}_inverse", inverse.reshape(shape))
    product = ir.node("Mul", [x, factors])
    product.outputs[0].dtype, product.outputs[0].shape = x.dtype, x.shape
    graph.insert_before(node, product)
    return product.outputs[0]


def _divided_by_maker(graph: ir.Graph, node: ir.Node, zero: Array, inverse: Array) -> ir.Value | None:
    """Return the same from the convolution that makes it, and a relu behind it, if nobody else reads these."""
    made = _only_maker(node)
    relu = made if made is not None and made.op_type == "Relu" else None
    if made is not None and made.op_type == "Clip" and _is_past_the_grid(made, zero, inverse):
        made = _only_maker(made)
    elif relu is not None:
        made = _only_maker(relu)
    weight = dequantize_before(made.inputs[1]) if made is not None and made.op_type == "Conv" else None
    if made is None or weight is None or not _is_by_output(weight):
        return None
    bias = made.inputs[2] if len(made.inputs) > 2 else None
    integers, numbers = dequantize_before(bias), value_of(bias)
    if bias is not None and numbers is None and (integers is None or not _is_by_output(integers)):
        return None
    made.replace_input_with(1, _rescaled(graph, weight, made, inverse))
    if integers is not None:
        made.replace_input_with(2, _rescaled(graph, integers, made, inverse))
    elif bias is not None and numbers is not None:
        made.replace_input_with(2, add_initializer(graph, f"{bias.name}_divided", numbers * inverse))
    return relu.outputs[0] if relu is not None else made.outputs[0]


def _is_by_output(dequantize: ir.Node) -> bool:
    """Tell whether constants are dequantized with one scale, or one for each of the first axis."""
    integers, scale = (_constant(value) for value in dequantize.inputs[:2])
    if integers is None or scale is None or scale.ndim > 1:
        return False
    zero = _constant(dequantize.inputs[2]) if len(dequantize.inputs) > 2 else None
    if scale.size == 1:
        return zero is not None or len(dequantize.inputs) == 2
    return bool(scale.size == integers.shape[0]) and dequantize.attributes.get_int("axis", 1) == 0


def _only_maker(node: ir.Node) -> ir.Node | None:
    """Return what makes the input of a node, if nothing else reads it."""
    x = node.inputs[0]
    alone = x is not None and len(x.uses()) == 1 and not x.is_graph_output()
    return x.producer() if x is not None and alone else None


def _is_past_the_grid(clip: ir.Node, zero: Array, inverse: Array) -> bool:
    """Tell whether the ends of a clip are those of the grid of every channel, or beyond: it does nothing then."""
    ends = [value_of(value) for value in clip.inputs[1:3]]
    if len(ends) < 2 or any(end is None or end.size != 1 for end in ends):
        return False
    limits, start = np.iinfo(zero.dtype), int(zero[0])
    low, high = (float(end.item()) * inverse for end in ends if end is not None)
    return bool((low <= (limits.min - start) + _HAIR).all() and (high >= (limits.max - start) - _HAIR).all())


def _rescaled(graph: ir.Graph, dequantize: ir.Node, before: ir.Node, factors: Array) -> ir.Value:
    """Return constants by output channel, dequantized with other scales; a factor may be for several of them."""
    integers, scale = (_constant(value) for value in dequantize.inputs[:2])
    assert integers is not None and scale is not None and dequantize.inputs[1] is not None
    count = integers.shape[0]
    both = (np.broadcast_to(scale, count) * np.repeat(factors, count // factors.size)).astype(np.float32)
    inputs = [*dequantize.inputs]
    inputs[1] = add_initializer(graph, f"{dequantize.inputs[1].name}_moved", both)
    zero = _constant(inputs[2]) if len(inputs) > 2 and scale.size != count else None
    if zero is not None:
        inputs[2] = add_initializer(graph, f"{inputs[1].name}_zero_points", np.full(count, zero.item(), zero.dtype))
    made = ir.node("DequantizeLinear", inputs, {"axis": 0})
    made.outputs[0].dtype, made.outputs[0].shape = dequantize.outputs[0].dtype, dequantize.outputs[0].shape
    graph.insert_before(before, made)
    return made.outputs[0]
