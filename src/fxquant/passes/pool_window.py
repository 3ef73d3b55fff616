"""The window of an average pool: (height, width), where it is the same for all outputs."""

from __future__ import annotations

from torch import fx, nn

from fxquant.graph.nodes import tensor_info
from fxquant.ops.table import Op
from fxquant.passes.read_op import operand_of, setting


def pool_window(node: fx.Node, op: Op, module: nn.Module | None) -> tuple[int, int] | None:
    """None for other pools, and where sizes are not known."""
    if op.window == "given":
        return _pair(setting(node, module, 1, "kernel_size"))
    before, after = tensor_info(operand_of(node)), tensor_info(node)
    if op.window != "parts" or before is None or after is None or len(before.shape) != 4:
        return None
    (height, width), (rows, columns) = before.shape[2:], after.shape[2:]
    return None if height % rows or width % columns else (height // rows, width // columns)


def is_global(node: fx.Node, op: Op) -> bool:
    """Tell whether an adaptive average pool is over the whole picture."""
    after = tensor_info(node)
    return op.window == "parts" and after is not None and tuple(after.shape[2:]) == (1, 1)


def _pair(size: object) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if isinstance(size, (tuple, list)) and 0 < len(size) <= 2 and all(isinstance(each, int) for each in size):
        return size[0], size[-1]
    return None
