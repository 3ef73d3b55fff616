"""Write ops that a target has no int8 kernel for as smaller ones that it has, where the rules ask for static int8.

silu(x)       ->  x * sigmoid(x)
hardswish(x)  ->  x * hardsigmoid(x)

The parts go by the rule of the whole, and the last one gives the tensor that was observed as the whole's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx
from torch.nn import functional as F

from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.passes.hardware_form import is_static
from fxquant.passes.read_op import operand_of


def split_ops(region: Region, context: Context) -> None:
    """Write ops that the target has no kernel for as smaller ones: silu as x * sigmoid(x)."""
    for node in list(region.graph.nodes):
        op = context.ops.of_node(node, region)
        if op is not None and op.kind in context.hardware.split and is_static(node):
            with region.graph.inserting_before(node):
                result = _gated(region.graph, node, GATES[op.kind])
            node.replace_all_uses_with(result)
            region.graph.erase_node(node)


def _gated(graph: fx.Graph, node: fx.Node, curve: Callable[[torch.Tensor], torch.Tensor]) -> fx.Node:
    x = operand_of(node)
    gate = graph.call_function(curve, (x,))
    product = graph.call_function(operator.mul, (x, gate))
    for made in (gate, product):
        made.meta.update({key: node.meta[key] for key in ("scope", "where", "tensor", "choice") if key in node.meta})
    product.meta["float_name"] = node.name
    if "rewritten" in node.meta:
        product.meta["rewritten"] = node.meta["rewritten"]
    return product


GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": torch.sigmoid, "hardswish": F.hardsigmoid}
