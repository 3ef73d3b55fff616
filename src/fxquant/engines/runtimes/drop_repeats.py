"""A tensor that was only moved or joined is still on its grid, so it is not quantized again.

    dequantize -> move -> quantize -> dequantize, on one grid    ->    dequantize -> move

The values stay the same. ONNX Runtime moves integers only with the second pair there; OpenVINO runs that pair, and
crashes on one behind a concatenation that another follows.
"""

from __future__ import annotations

import onnx_ir as ir

from fxquant.export.onnx.producers import Grid, grid_of, quantize_before

_MOVES = frozenset(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Split", "Slice", "Gather"))


def drop_repeats(graph: ir.Graph) -> None:
    """Read past the repeated pairs, in place; nothing uses them then."""
    grids: dict[ir.Value, Grid] = {}  # of the tensors that are known to be on one
    for node in list(graph):
        grid = _grid_after(node, grids)
        if grid is None:
            continue
        grids.update(dict.fromkeys(node.outputs, grid))
        pair = quantize_before(node) if node.op_type == "DequantizeLinear" else None
        moved = pair.inputs[0] if pair is not None else None
        if pair is not None and moved is not None and grids.get(moved) == grid == grid_of(pair):
            node.outputs[0].replace_all_uses_with(moved, replace_graph_outputs=True)


def _grid_after(node: ir.Node, grids: dict[ir.Value, Grid]) -> Grid | None:
    """Return the grid that the outputs of a node are on, by those of its inputs."""
    if node.op_type == "DequantizeLinear":
        return grid_of(node)
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1] if node.op_type in _MOVES else ()
    found = {grids.get(value) if value is not None else None for value in values}
    return found.pop() if len(found) == 1 else None
