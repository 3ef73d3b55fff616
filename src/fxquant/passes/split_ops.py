"""Write ops that a target has no int8 kernel for as smaller ones that it has, where the rules ask for static int8.

silu(x)       ->  x * sigmoid(x)
hardswish(x)  ->  x * hardsigmoid(x)
attention     ->  two products and a softmax (attention_products.py)

The parts go by the rule of the whole, and the last one gives the tensor that was observed as the whole's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.passes.attention_products import attention_products
from fxquant.passes.hardware_form import call, is_static
from fxquant.passes.read_op import operand_of


def split_ops(region: Region, context: Context) -> None:
    """Write ops that the target has no kernel for as smaller ones: silu as x * sigmoid(x), attention as products."""
    for node in list(region.graph.nodes):
        op = context.ops.of_node(node, region)
        if op is not None and op.kind in context.hardware.split and is_static(node):
            result = _gated(node, op.gate) if op.gate is not None else attention_products(region, node)
            if result is not None:
                result.meta["float_name"] = node.name
                node.replace_all_uses_with(result)
                region.graph.erase_node(node)


def _gated(node: fx.Node, curve: Callable[[torch.Tensor], torch.Tensor]) -> fx.Node:
    x = operand_of(node)
    gate = call(node, curve, x)
    gate.meta.pop("rewritten", None)
    return call(node, operator.mul, x, gate)
