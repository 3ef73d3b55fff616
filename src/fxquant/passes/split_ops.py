"""Write ops that a target has no int8 kernel for as smaller ones that it has, where the rules ask for static int8.

silu(x)  ->  x * sigmoid(x)

The parts go by the rule of the whole, and the last one gives the tensor that was observed as the whole's.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable
from fxquant.core.target import Target
from fxquant.passes.candidates import choice_of


def split_ops(region: Region, target: Target, ops: OpTable = OPS) -> Region:
    """Rewrite the kinds in `target.split`."""
    for node in list(region.graph.nodes):
        op = ops.of_node(node, region)
        if op is not None and op.kind in target.split and _is_static(node):
            with region.graph.inserting_before(node):
                result = _REWRITES[op.kind](region.graph, node)
            node.replace_all_uses_with(result)
            region.graph.erase_node(node)
    region.recompile()
    return region


def _is_static(node: fx.Node) -> bool:
    choice = choice_of(node)
    qconfig = choice.qconfig if choice is not None else None
    return qconfig is not None and qconfig.activation is not None and not qconfig.is_dynamic


def _silu(graph: fx.Graph, node: fx.Node) -> fx.Node:
    x = node.args[0] if node.args else node.kwargs["input"]
    gate = graph.call_function(torch.sigmoid, (x,))
    product = graph.call_function(operator.mul, (x, gate))
    for made in (gate, product):
        made.meta.update({key: node.meta[key] for key in ("scope", "where", "tensor", "choice") if key in node.meta})
    product.meta["site"] = node.name
    return product


_REWRITES = {"silu": _silu}
