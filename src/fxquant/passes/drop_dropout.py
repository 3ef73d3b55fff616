"""After training: take dropout out of a prepared graph, and the second of two quantizers that it stood between."""

from __future__ import annotations

from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.hooks import has_forward_hooks
from fxquant.graph.region import Region


def drop_dropout(region: Region, context: Context) -> None:
    """Take dropout out of a trained graph."""
    for node in list(region.graph.nodes):
        op, source = context.ops.of_node(node, region), node.args[0] if node.args else None
        if op is None or not op.random or node.op != "call_module" or not isinstance(source, fx.Node):
            continue
        if has_forward_hooks(region.get_submodule(str(node.target))):
            continue
        users = list(node.users)
        node.replace_all_uses_with(source)
        region.graph.erase_node(node)
        for user in users:
            if user.op == "call_module" and user.target == source.target:  # the same quantizer again
                user.replace_all_uses_with(source)
                region.graph.erase_node(user)
