"""Tensors padded as integers, where OpenVINO would pad them with the wrong number.

    dequantize -> pad with v    ->    pad with the integer of v -> dequantize

OpenVINO moves zero points behind a pad that is joined with other tensors, but not those of what it pads with.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of


def pad_integers(graph: ir.Graph) -> None:
    """Rewrite the constant pads of tensors on a grid, in place; pairs that nothing reads any more are left behind."""
    for pad in [node for node in graph if node.op_type == "Pad"]:
        pair = pad.inputs[0].producer() if pad.inputs[0] is not None else None
        if pair is None or pair.op_type != "DequantizeLinear" or not _is_constant(pad):
            continue
        integer = _integer(pair, pad.inputs[2] if len(pad.inputs) > 2 else None)
        if integer is None:
            continue
        value = add_initializer(graph, f"{pad.outputs[0].name}_integer", integer)
        padded = ir.node("Pad", [pair.inputs[0], pad.inputs[1], value, *pad.inputs[3:]], dict(pad.attributes))
        again = ir.node("DequantizeLinear", [padded.outputs[0], *pair.inputs[1:]], dict(pair.attributes))
        old, new = pad.outputs[0], again.outputs[0]
        padded.outputs[0].dtype, padded.outputs[0].shape = ir.DataType.from_numpy(integer.dtype), old.shape
        new.dtype, new.shape = old.dtype, old.shape
        graph.insert_after(pad, [padded, again])
        old.replace_all_uses_with(new, replace_graph_outputs=True)


def _is_constant(pad: ir.Node) -> bool:
    return str(pad.attributes.get_string("mode", "constant")) == "constant"


def _integer(pair: ir.Node, value: ir.Value | None) -> Array | None:
    """Return the integer that stands for the value, as a scalar; None where the grid has none, or is by channel."""
    number = np.zeros(()) if value is None else value_of(value)
    scale, zero = [*(value_of(each) for each in pair.inputs[1:]), None][:2]
    if number is None or scale is None or zero is None or scale.size != 1 or number.size != 1:
        return None
    steps = np.rint(number.item() / scale.item()) + zero.item()
    ends = np.iinfo(zero.dtype)
    on_grid = np.isclose((steps - zero.item()) * scale.item(), number.item(), rtol=1e-6, atol=0.0)
    return np.array(steps, dtype=zero.dtype) if on_grid and ends.min <= steps <= ends.max else None
