"""Zero points of inputs, folded into the bias of the op that reads them.

    w (x - z) + b  =  w x + (b - w z)

Not where a convolution pads: it would pad with zeros of the new grid. OpenVINO is faster without zero points.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import dequantize_before

_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")


def fold_zero_points(graph: ir.Graph) -> None:
    """Fold what can be, in place; pairs that nothing reads any more are left behind."""
    made: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        shift = _shift(node)
        x = node.inputs[0] if node.inputs else None
        if shift is not None and x is not None and _move_bias(graph, node, shift):
            node.replace_input_with(0, _without_zero_point(graph, x, made))


def _shift(node: ir.Node) -> Array | None:
    """w z for every output channel of a product with a constant int8 weight; None if there is nothing to fold."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or _has_settings(node):
        return None
    x, weight = dequantize_before(node.inputs[0], _MOVES), dequantize_before(node.inputs[1])
    if x is None or weight is None or len(x.inputs) < 3 or not _is_symmetric(weight):
        return None
    q, w_scale, x_scale, zero = (value_of(value) for value in (*weight.inputs[:2], *x.inputs[1:]))
    if q is None or w_scale is None or x_scale is None or zero is None or zero.size != 1 or not zero.any():
        return None
    axis = 0 if node.op_type == "Conv" or node.attributes.get_int("transB", 0) else 1
    if (node.op_type == "MatMul" and q.ndim != 2) or (
        w_scale.size > 1 and weight.attributes.get_int("axis", 1) != axis
    ):
        return None
    steps = q.sum(tuple(other for other in range(q.ndim) if other != axis), dtype=np.int64)
    shift: Array = steps * (x_scale.item() * zero.item()) * w_scale.reshape(-1).astype(np.float64)
    return shift


def _has_settings(node: ir.Node) -> bool:
    """Padding, or a product that is scaled or turned."""
    if node.op_type == "Conv":
        pads = node.attributes.get_ints("pads", ())
        return any(pads) or node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    return not plain or bool(node.attributes.get_int("transA", 0))


def _move_bias(graph: ir.Graph, node: ir.Node, shift: Array) -> bool:
    """Take the shift off the bias; False if the op has none, or one that is computed."""
    reader, place = (node, 2)
    if node.op_type == "MatMul":
        users = node.outputs[0].uses()
        if len(users) != 1 or users[0].node.op_type != "Add":
            return False
        reader, place = users[0].node, 1 - users[0].idx
    if len(reader.inputs) <= place or (old := reader.inputs[place]) is None:
        return False
    bias = _constant(old)
    if bias is None or bias.shape != shift.shape:
        return False
    new = add_initializer(graph, f"{old.name}_folded", (bias - shift).astype(np.float32))
    reader.replace_input_with(place, new)
    return True


def _constant(value: ir.Value) -> Array | None:
    """Return a constant in double precision; that may be stored as integers."""
    made = dequantize_before(value)
    if made is None:
        array = value_of(value)
        return None if array is None else array.astype(np.float64)
    steps, scale = (value_of(part) for part in made.inputs[:2])
    if steps is None or scale is None or not _is_symmetric(made):
        return None
    return steps * scale.astype(np.float64)


def _is_symmetric(dequantize: ir.Node) -> bool:
    zeros = [value_of(value) for value in dequantize.inputs[2:]]
    return all(zero is not None and not zero.any() for zero in zeros)


def _without_zero_point(graph: ir.Graph, value: ir.Value, made: dict[ir.Value, ir.Value]) -> ir.Value:
    """Return a tensor that was dequantized, and perhaps moved since, on the grid that starts at zero.

    Each is made once.
    """
    if value not in made:
        node = value.producer()
        assert node is not None and node.inputs[0] is not None
        if node.op_type == "DequantizeLinear":
            new = ir.node("DequantizeLinear", node.inputs[:2])
        else:
            first = _without_zero_point(graph, node.inputs[0], made)
            new = ir.node(node.op_type, [first, *node.inputs[1:]], dict(node.attributes))
        graph.insert_after(node, new)
        new.outputs[0].dtype, new.outputs[0].shape = value.dtype, value.shape
        made[value] = new.outputs[0]
    return made[value]
