"""Biases as integers, which int8 kernels take in without leaving the integers.

    bias = q * (x_scale * w_scale)        q: int32, one scale per output channel

A channel whose weights are tiny beside its bias would overflow q. Its weights move to the coarser scale that fits:
the error that brings is below 1e-7 of the bias for each input of the channel.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before

_LIMIT = float(2**31 - 1) * 0.99
_INT8 = (ir.DataType.INT8, ir.DataType.UINT8)


def quantize_biases(graph: ir.Graph) -> None:
    """Give every Conv and Gemm between int8 tensors an int32 bias, in place."""
    for node in list(graph):
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.inputs) < 3:
            continue
        x, weight = (dequantize_before(value) for value in node.inputs[:2])
        bias = value_of(node.inputs[2])
        if x is not None and weight is not None and bias is not None and bias.dtype == np.float32:
            _quantize_bias(graph, node, x, weight, bias)


def _quantize_bias(graph: ir.Graph, node: ir.Node, x: ir.Node, weight: ir.Node, bias: Array) -> None:
    x_scale, w_scale, q = value_of(x.inputs[1]), value_of(weight.inputs[1]), value_of(weight.inputs[0])
    zero = value_of(weight.inputs[2]) if len(weight.inputs) > 2 else None
    source = x.inputs[0]
    if x_scale is None or w_scale is None or q is None or x_scale.size != 1 or w_scale.size not in (1, bias.size):
        return
    if source is None or source.dtype not in _INT8 or q.dtype not in (np.int8, np.uint8):
        return
    if _output_axis(node) != weight.attributes.get_int("axis", 1) and w_scale.size > 1:
        return
    name = node.inputs[2].name if node.inputs[2] is not None else node.name
    needed = np.abs(bias.astype(np.float64)) / (float(x_scale) * _LIMIT)
    if np.any(needed > w_scale):
        if zero is not None and np.any(zero):
            return
        w_scale, weight = _coarsen(graph, node, weight, q, w_scale, needed)
    scale = (float(x_scale) * np.broadcast_to(w_scale, bias.shape).astype(np.float64)).astype(np.float32)
    steps = np.rint(bias.astype(np.float64) / scale).astype(np.int32)
    inputs = [
        add_initializer(graph, f"{name}_int32", steps),
        add_initializer(graph, f"{name}_scale", scale),
        add_initializer(graph, f"{name}_zero_point", np.zeros(bias.shape, np.int32)),
    ]
    made = ir.node("DequantizeLinear", inputs, {"axis": 0})
    graph.insert_before(node, made)
    made.outputs[0].dtype, made.outputs[0].shape = ir.DataType.FLOAT, ir.Shape(bias.shape)
    node.replace_input_with(2, made.outputs[0])


def _coarsen(
    graph: ir.Graph, node: ir.Node, weight: ir.Node, q: Array, scale: Array, needed: Array
) -> tuple[Array, ir.Node]:
    """Return a dequantize of its own for this node, at scales that leave room for the bias."""
    axis = weight.attributes.get_int("axis", 1)
    if scale.size == 1:
        coarse = np.maximum(scale, needed.max()).astype(np.float32)
        ratio = scale / coarse
    else:
        coarse = np.maximum(scale, needed).astype(np.float32)
        shape = [1] * q.ndim
        shape[axis] = -1
        ratio = (scale / coarse).reshape(shape)
    name = weight.inputs[0].name if weight.inputs[0] is not None else node.name
    inputs = [
        add_initializer(graph, f"{name}_coarse", np.rint(q * ratio).astype(q.dtype)),
        add_initializer(graph, f"{name}_coarse_scale", coarse),
        *weight.inputs[2:],
    ]
    made = ir.node("DequantizeLinear", inputs, {"axis": axis})
    graph.insert_before(node, made)
    made.outputs[0].dtype, made.outputs[0].shape = ir.DataType.FLOAT, ir.Shape(q.shape)
    node.replace_input_with(1, made.outputs[0])
    return coarse, made


def _output_axis(node: ir.Node) -> int:
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return 1 if node.op_type == "ConvTranspose" else 0
