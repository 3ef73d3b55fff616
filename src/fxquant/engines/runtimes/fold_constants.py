"""Constants that are quantized and dequantized as a tensor would be, as the constants that this gives.

OpenVINO fails on some of them: a layer scale (a parameter times a tensor), for one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import Array, add_initializer, value_of
from fxquant.export.onnx.producers import quantize_before


def fold_constants(graph: ir.Graph) -> None:
    """Fold the pairs, in place; nothing uses them then."""
    for node in list(graph):
        quantize = quantize_before(node) if node.op_type == "DequantizeLinear" else None
        folded = _folded(quantize) if quantize is not None else None
        if folded is not None:
            new = add_initializer(graph, f"{node.outputs[0].name}_constant", folded)
            node.outputs[0].replace_all_uses_with(new)


def _folded(quantize: ir.Node) -> Array | None:
    """Return what a constant is after a pair on one grid; None for what is computed, or has a grid for each channel."""
    x, scale, zero = (value_of(value) for value in (*quantize.inputs, None)[:3])
    if x is None or scale is None or scale.size != 1 or zero is None:
        return None
    limits = np.iinfo(zero.dtype)
    steps = np.clip(np.rint(x / scale) + zero.astype(np.float32), limits.min, limits.max)
    folded: Array = ((steps - zero.astype(np.float32)) * scale).astype(np.float32)
    return folded
