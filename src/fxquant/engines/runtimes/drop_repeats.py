"""A tensor that was only moved or joined is still on its grid, so it is not quantized again.

    dequantize -> move -> quantize -> dequantize, on one grid    ->    dequantize -> move

The values stay the same. ONNX Runtime moves integers only with the second pair there; OpenVINO runs that pair, and
crashes on one behind a concatenation that another follows.
"""

from __future__ import annotations

import onnx_ir as ir

from fxquant.export.onnx.initializers import value_of
from fxquant.export.onnx.producers import quantize_before

_MOVES = frozenset(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Split", "Slice", "Gather"))

_Grid = tuple[float, int, str]


def drop_repeats(graph: ir.Graph) -> None:
    """Read past the repeated pairs, in place; nothing uses them then."""
    grids: dict[ir.Value, _Grid] = {}  # of the tensors that are known to be on one
    for node in list(graph):
        grid = _grid_after(node, grids)
        if grid is None:
            continue
        grids.update(dict.fromkeys(node.outputs, grid))
        pair = quantize_before(node) if node.op_type == "DequantizeLinear" else None
        moved = pair.inputs[0] if pair is not None else None
        if pair is not None and moved is not None and grids.get(moved) == grid == _grid(pair):
            node.outputs[0].replace_all_uses_with(moved, replace_graph_outputs=True)


def _grid_after(node: ir.Node, grids: dict[ir.Value, _Grid]) -> _Grid | None:
    """Return the grid that the outputs of a node are on, by those of its inputs."""
    if node.op_type == "DequantizeLinear":
        return _grid(node)
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1] if node.op_type in _MOVES else ()
    found = {grids.get(value) if value is not None else None for value in values}
    return found.pop() if len(found) == 1 else None


def _grid(node: ir.Node) -> _Grid | None:
    """Scale, zero point and dtype of half a pair; None if they are not constants, or several."""
    arrays = [value_of(value) for value in node.inputs[1:]]
    scale, zero = arrays if len(arrays) == 2 else (None, None)
    if scale is None or zero is None or scale.size != 1:
        return None
    return scale.item(), zero.item(), zero.dtype.name
