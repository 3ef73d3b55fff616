"""Decide what is quantized, how, and which nodes form one kernel; write Notes and Decisions into `node.meta`.

COMPUTE ops ask for int8 inputs. The others follow where it pays: their tensors come from int8 kernels and go to int8
kernels. Everything between stays float, so a residual stream that ends in a layer norm is never rounded.
"""

from __future__ import annotations

from torch import fx

from fxquant.graph.context import Context
from fxquant.graph.notes import Decision, Note, decision_of, remark
from fxquant.graph.region import Region, preparation_of
from fxquant.ops.table import Role, activation_nodes
from fxquant.passes.assign import assign_quantizers
from fxquant.passes.candidates import Candidate, find_candidates, is_float_tensor
from fxquant.passes.groups import find_groups

_SOURCES = ("placeholder", "get_attr")


def annotate(region: Region, context: Context) -> None:
    """Decide what is quantized, how, and which nodes form one kernel; a Note and a Decision say so on each node.

    The rules have been asked (choose.py); their answers go.
    """
    target = context.hardware
    candidates, decisions = find_candidates(region, target, context.ops)
    dropped = _drop_followers(candidates)
    kept = {node: candidate for node, candidate in candidates.items() if node not in dropped}
    groups = find_groups(kept, candidates, target)
    for node in groups:
        dropped.pop(node, None)
        kept[node] = candidates[node]
    preparation = preparation_of(region)
    notes, preparation.quantizers = assign_quantizers(region, kept, groups, target, context.training)
    preparation.positions, preparation.clear_ties = target.positions, target.clear_ties
    for node in region.graph.nodes:
        if node in kept:
            _write(node, kept[node], notes[node])
            if target.positions and not notes[node].observe_output:
                remark(node, "align: its inputs and output are on one scale")
        elif node in dropped:
            decision = Decision(
                kind=candidates[node].op.kind, status="float", reason=dropped[node], rule=candidates[node].rule
            )
            node.meta["decision"] = decision
        elif node in decisions:
            node.meta["decision"] = decisions[node]
        _add_remarks(node)
        node.meta.pop("choice", None)


def _add_remarks(node: fx.Node) -> None:
    """Why a batch norm was not merged into the op before it, and what passes and algorithms did, goes to a Decision."""
    why, said = node.meta.pop("unfused", None), node.meta.pop("remarks", ())
    if decision_of(node) is not None:
        for text in (*(() if why is None else (why,)), *said, *map(str, node.meta.get("rewritten", ()))):
            remark(node, text)


def _write(node: fx.Node, candidate: Candidate, note: Note) -> None:
    status = "int8" if candidate.mode == "static" else candidate.mode
    where = f"fused into {note.group}" if note.group not in (None, node.name) else _describe(candidate)
    node.meta["note"] = note
    node.meta["decision"] = Decision(kind=candidate.op.kind, status=status, reason=where, rule=candidate.rule)


def _describe(candidate: Candidate) -> str:
    weight = f"weight {candidate.weight}" if candidate.weight is not None else ""
    if candidate.mode == "float16":
        return "weight float16, computed in float"
    if candidate.mode == "weight_only":
        return weight
    activation = f"activation {candidate.qconfig.activation}"
    return f"{weight}, {activation}" if weight else activation


def _drop_followers(candidates: dict[fx.Node, Candidate]) -> dict[fx.Node, str]:
    """Return the followers that do not sit between int8 kernels, each with the reason.

    The search is repeated until nothing changes.
    """
    dropped: dict[fx.Node, str] = {}
    static = {node: c for node, c in candidates.items() if c.mode == "static"}
    followers = [c for c in static.values() if c.op.role is not Role.COMPUTE]
    changed = True
    while changed:
        changed = False
        for candidate in followers:
            if candidate.node in dropped:
                continue
            reason = _why_not(candidate, static, dropped)
            if reason is not None:
                dropped[candidate.node] = reason
                changed = True
    return dropped


def _why_not(candidate: Candidate, static: dict[fx.Node, Candidate], dropped: dict[fx.Node, str]) -> str | None:
    def is_int8(node: fx.Node) -> bool:
        return node in static and node not in dropped

    node = candidate.node
    operands = [n for n in activation_nodes(node, candidate.op) if is_float_tensor(n)]
    for operand in operands:
        # a tensor made of nothing, such as torch.ones(8), is as good as a buffer
        if not is_int8(operand) and operand.op not in _SOURCES and operand.all_input_nodes:
            return f"its operand {operand.name} is float"
    if operands and not any(is_int8(operand) for operand in operands):
        return "no operand comes from an int8 kernel"
    for user in node.users:
        if is_int8(user) and _wants(user, node, static[user]):
            return None
    return "nothing after it takes int8"


def _wants(user: fx.Node, source: fx.Node, candidate: Candidate) -> bool:
    operands = activation_nodes(user, candidate.op)
    return any(n is source and candidate.qconfig.input_spec(i) is not None for i, n in enumerate(operands))
