"""Write ops that a target has no int8 kernel for as smaller ones that it has.

silu(x)  ->  x * sigmoid(x)
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable
from fxquant.core.target import Target


def split_ops(region: Region, target: Target, ops: OpTable = OPS) -> Region:
    """Rewrite the kinds in `target.split`."""
    for node in list(region.graph.nodes):
        op = ops.of_node(node, region)
        if op is not None and op.kind in target.split:
            with region.graph.inserting_before(node):
                result = _REWRITES[op.kind](region.graph, node)
            node.replace_all_uses_with(result)
            region.graph.erase_node(node)
    region.recompile()
    return region


def _silu(graph: fx.Graph, node: fx.Node) -> fx.Node:
    x = node.args[0] if node.args else node.kwargs["input"]
    gate = graph.call_function(torch.sigmoid, (x,))
    product = graph.call_function(operator.mul, (x, gate))
    for made in (gate, product):
        made.meta.update({key: node.meta[key] for key in ("scope", "where", "tensor") if key in node.meta})
    return product


_REWRITES = {"silu": _silu}
