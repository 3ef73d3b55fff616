"""A tensor that was only moved is still on its grid, so it is not quantized again.

    dequantize -> move -> quantize -> dequantize, on one grid    ->    dequantize -> move

The values stay the same. ONNX Runtime moves integers only with the second pair there; OpenVINO runs that pair.
"""

from __future__ import annotations

import onnx_ir as ir

from fxquant.export.initializers import value_of
from fxquant.export.producers import dequantize_before

_MOVES = frozenset(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Split", "Slice", "Gather"))


def drop_repeats(graph: ir.Graph) -> None:
    """Read past the repeated pairs, in place; nothing uses them then."""
    for node in list(graph):
        pair = _maker(node) if node.op_type == "DequantizeLinear" else None
        if pair is None or pair.op_type != "QuantizeLinear":
            continue
        first = dequantize_before(pair.inputs[0], _MOVES)
        grid = _grid(node)
        if grid is not None and first is not None and grid == _grid(pair) == _grid(first):
            moved = pair.inputs[0]
            assert moved is not None
            node.outputs[0].replace_all_uses_with(moved, replace_graph_outputs=True)


def _maker(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs[0] is not None else None


def _grid(node: ir.Node) -> tuple[float, int, str] | None:
    """Scale, zero point and dtype of half a pair; None if they are not constants, or several."""
    arrays = [value_of(value) for value in node.inputs[1:]]
    scale, zero = arrays if len(arrays) == 2 else (None, None)
    if scale is None or zero is None or scale.size != 1:
        return None
    return float(scale), int(zero), zero.dtype.name
