"""Biases that are computed at run time: added behind the op, which runs on its weight alone.

    linear(x, get_attr weight, cat([q_bias, k_bias, v_bias]))    ->    linear(x, get_attr weight) + cat(...)
    conv2d(x, get_attr weight, computed)                         ->    conv2d(x, get_attr weight) + reshape(computed)

In eval mode that is left of biases that do not follow from parameters alone; in training none are folded.
"""

from __future__ import annotations

import operator

from torch import fx

from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import OpTable, Role, argument


def add_biases(region: Region, ops: OpTable) -> None:
    """Rewrite the calls of weighted functions on a parameter and a computed bias."""
    for node in list(region.graph.nodes):
        op = ops.of(node.target) if node.op == "call_function" else None
        if op is None or op.role is not Role.COMPUTE or not {"weight", "bias"} <= {*op.params}:
            continue
        position = op.params.index("bias")
        weight, bias = argument(node, op, op.params.index("weight")), argument(node, op, position)
        stored = isinstance(weight, fx.Node) and weight.op == "get_attr"
        if stored and isinstance(bias, fx.Node) and bias.op != "get_attr":
            pixels = get_attr(region, str(weight.target)).dim() - 2
            _add_behind(node, position, bias, pixels)


def _add_behind(node: fx.Node, position: int, bias: fx.Node, pixels: int) -> None:
    if position < len(node.args):
        node.args = (*node.args[:position], None, *node.args[position + 1 :])
    else:
        node.kwargs = {**node.kwargs, "bias": None}
    graph = node.graph
    known: dict[str, object] = {key: node.meta[key] for key in ("scope", "where", "tensor") if key in node.meta}
    with graph.inserting_after(node):
        added = graph.call_function(operator.add, (node, node))
    if pixels:
        with graph.inserting_before(added):
            bias = graph.call_method("reshape", (bias, -1, *[1] * pixels))
            bias.meta = {key: known[key] for key in known if key != "tensor"}
    node.replace_all_uses_with(added)
    added.args, added.meta = (node, bias), known
