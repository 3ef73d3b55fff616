"""Largest and smallest values in a form that OpenVINO computes right.

It takes what follows a ReduceMax or ReduceMin, up to a quantize, into the reduction, and then keeps the values that it
compares on the grid of the result. An op that changes nothing, and that it cannot take in, keeps it from that.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import add_initializer


def part_extremes(graph: ir.Graph) -> None:
    """Put a Max with the lowest number behind the extremes of a graph, in place."""
    for node in [node for node in graph if node.op_type in ("ReduceMax", "ReduceMin")]:
        result = node.outputs[0]
        if result.dtype is not ir.DataType.FLOAT or any(output is result for output in graph.outputs):
            continue
        lowest = add_initializer(graph, f"{result.name}_lowest", np.array(np.finfo(np.float32).min))
        kept = ir.node("Max", [result, lowest])
        graph.insert_after(node, kept)
        kept.outputs[0].dtype, kept.outputs[0].shape = result.dtype, result.shape
        for use in [use for use in result.uses() if use.node is not kept]:
            use.node.replace_input_with(use.idx, kept.outputs[0])
