"""Ask for the rank of a tensor as early as possible: `conv(x).dim()` is `x.dim()`.

Libraries check the rank of what they are given (`if x.dim() != 4: raise`), which leaves a reader on a tensor between
two ops that would otherwise be one kernel. Walking up through ops that keep the rank moves it out of the way.
"""

from __future__ import annotations

from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.ops.table import OpTable, activation_nodes


def hoist_dim(region: Region, context: Context) -> None:
    """Move every `dim()` and `ndim` up through the ops that keep the rank."""
    for node in region.graph.nodes:
        reads = node.target in ("dim", "ndimension") if node.op == "call_method" else node.target is getattr
        if not reads or (node.op == "call_function" and node.args[1] != "ndim"):
            continue
        source = node.args[0]
        while isinstance(source, fx.Node) and (earlier := _same_rank(region, source, context.ops)) is not None:
            source = earlier
        node.args = (source, *node.args[1:])


def _same_rank(region: Region, node: fx.Node, ops: OpTable) -> fx.Node | None:
    op = ops.of_node(node, region)
    operands = activation_nodes(node, op) if op is not None and op.keeps_rank else []
    return operands[0] if operands else None
