"""Kernel groups: an anchor (conv, linear, add, ...), a residual add where the target has one, and a unary tail.

Inside a group nothing is quantized; the group's inputs are, and its last output where an int8 kernel takes it.
"""

from __future__ import annotations

from torch import fx

from fxquant.config.target import Target
from fxquant.graph.nodes import only_user, tensor_info
from fxquant.ops.table import Role, activation_nodes
from fxquant.passes.candidates import Candidate


def find_groups(
    kept: dict[fx.Node, Candidate], candidates: dict[fx.Node, Candidate], target: Target
) -> dict[fx.Node, fx.Node]:
    """Node -> anchor of its group, for every node in a group of two or more.

    A tail joins even where it would not be int8 by itself (`kept`): the kernel applies it before it writes a float
    output. Convolutions and products go before other anchors, and later ones first: of two convolutions into one
    add, the one computed last takes it.
    """
    groups: dict[fx.Node, fx.Node] = {}
    compute = [node for node, c in kept.items() if c.op.role is Role.COMPUTE and c.mode in ("static", "dynamic")]
    others = [node for node, c in kept.items() if c.op.role is not Role.COMPUTE and c.op.kind in target.tails]
    for node in (*reversed(compute), *reversed(others)):
        candidate = kept[node]
        if node in groups:
            continue
        last = node
        if candidate.op.kind in target.residual and candidate.mode == "static":
            add = only_user(last)
            if add is not None and add in kept and add not in groups and _is_residual(add, last, kept[add]):
                groups[add] = node
                last = add
        tail = only_user(last)
        if tail is not None and tail in candidates and tail not in groups and candidates[tail].mode == "static":
            op = candidates[tail].op
            unary = len(activation_nodes(tail, op)) == 1
            if unary and op.kind in target.tails.get(candidate.op.kind, ()) and tail.args[:1] == (last,):
                groups[tail] = node
                last = tail
        if last is not node:
            groups[node] = node
    return groups


def _is_residual(add: fx.Node, source: fx.Node, candidate: Candidate) -> bool:
    """Tell whether `add` is `source + other` of two tensors of one shape, neither of them exempted, with no alpha."""
    if not candidate.op.adds or "alpha" in add.kwargs or len(add.args) != 2:
        return False
    operands = activation_nodes(add, candidate.op)
    if len(operands) != 2 or operands[0] is operands[1]:
        return False
    if any(candidate.qconfig.input_spec(index) is None for index in range(2)):
        return False
    shapes = {info.shape if (info := tensor_info(operand)) is not None else None for operand in operands}
    return source in operands and len(shapes) == 1 and None not in shapes
