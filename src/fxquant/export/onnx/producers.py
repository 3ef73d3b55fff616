"""What made a value of an ONNX graph, and the grid that it is on."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from fxquant.export.onnx.initializers import value_of

Grid = tuple[float, int, str]  # scale, zero point and dtype


def dequantize_before(value: ir.Value | None, moves: Collection[str] = ()) -> ir.Node | None:
    """Return the dequantize that made a tensor, but for ops of these kinds since."""
    made = value.producer() if value is not None else None
    while made is not None and made.op_type in moves:
        made = made.inputs[0].producer() if made.inputs[0] is not None else None
    return made if made is not None and made.op_type == "DequantizeLinear" else None


def quantize_before(dequantize: ir.Node) -> ir.Node | None:
    """Return the other half of a pair, if it is there: integers may also be constants, or the graph's inputs."""
    made = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
    return made if made is not None and made.op_type == "QuantizeLinear" else None


def grid_of(node: ir.Node) -> Grid | None:
    """Return the grid of half a pair; None if it is not constant, or has several scales."""
    arrays = [value_of(value) for value in node.inputs[1:]]
    scale, zero = arrays if len(arrays) == 2 else (None, None)
    if scale is None or zero is None or scale.size != 1:
        return None
    return scale.item(), zero.item(), zero.dtype.name
