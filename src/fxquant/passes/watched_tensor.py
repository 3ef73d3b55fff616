"""Find the tensor that is to be watched in a float graph, or compute it beside the op that keeps it inside."""

from __future__ import annotations

from torch import fx

from fxquant.graph.region import Region
from fxquant.passes.attention_products import computed, of_part


def watched_tensor(region: Region, path: str, tensor: str) -> fx.Node:
    """Return the node of a tensor. What computes one that has none is put at `path`, among the statistics."""
    op, name = of_part(tensor)
    at = f"{path}.{tensor}"
    node: fx.Node = next(node for node in region.graph.nodes if node.name == op or node.target == at)
    if not name or node.target == at:
        return node
    module, operands = computed(node, name)
    if module is None:
        return operands[0]
    region.get_submodule(path).add_module(tensor, module)
    with region.graph.inserting_before(node):
        return region.graph.call_module(at, operands)
