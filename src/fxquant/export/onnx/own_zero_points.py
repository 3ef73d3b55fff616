"""A zero point for each constant of 8 bits, where several had one between them.

ONNX Runtime, asked for exact sums (`session.x64quantprecision`), makes weights unsigned, and with each of them its zero
point: it stops with an error at the second weight that has the same one.
"""

from __future__ import annotations

import onnx_ir as ir

from fxquant.export.onnx.initializers import add_initializer, value_of


def part_zero_points(graph: ir.Graph) -> None:
    """Give the dequantize of each int8 constant a zero point of its own."""
    taken: set[str] = set()
    for node in graph:
        if node.op_type != "DequantizeLinear" or len(node.inputs) < 3:
            continue
        integers, zero = node.inputs[0], node.inputs[2]
        values = value_of(zero)
        if integers is None or zero is None or values is None or integers.const_value is None:
            continue
        if integers.const_value.dtype is ir.DataType.INT8 and zero.name in taken:
            node.replace_input_with(2, add_initializer(graph, f"{integers.name}_zero_point", values))
        taken.add(str(zero.name))
