"""After training: take dropout out of a prepared graph, and the second of two quantizers that it stood between."""

from __future__ import annotations

from torch import fx

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable


def drop_dropout(region: Region, ops: OpTable = OPS) -> Region:
    """Route around every dropout module."""
    for node in list(region.graph.nodes):
        op, source = ops.of_node(node, region), node.args[0] if node.args else None
        if op is None or op.kind != "dropout" or node.op != "call_module" or not isinstance(source, fx.Node):
            continue
        users = list(node.users)
        node.replace_all_uses_with(source)
        region.graph.erase_node(node)
        for user in users:
            if user.op == "call_module" and user.target == source.target:  # the same quantizer again
                user.replace_all_uses_with(source)
                region.graph.erase_node(user)
    region.recompile()
    return region
