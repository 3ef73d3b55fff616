"""The ops of a converted graph that run in int8, each with the grids around it, read from the QDQ graph itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from fxquant.export.encodings import Encoding, encoding
from fxquant.graph import torch_compat
from fxquant.graph.grid import QParams
from fxquant.graph.notes import Note, decision_of, note_of
from fxquant.graph.paths import get_attr
from fxquant.graph.region import Region
from fxquant.ops.table import OPS, Op, activation_nodes, argument


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """An op that runs in int8, with the grids around it. `tail`: the kinds after it in its group."""

    region: Region
    node: fx.Node
    op: Op
    note: Note
    last: fx.Node
    tail: tuple[Op, ...]
    makers: frozenset[str]
    inputs: tuple[Encoding | None, ...]
    output: Encoding | None
    weight: Encoding | None
    bias: Encoding | None
    has_bias: bool
    groups: int

    @property
    def is_anchor(self) -> bool:
        return self.note.group in (None, self.node.name)


def sites(region: Region) -> Iterator[Site]:
    """Yield the ops that run in int8; that they do, and in which group, is their Note and Decision."""
    for node in region.graph.nodes:
        note, decision, op = note_of(node), decision_of(node), OPS.of_node(node, region)
        if note is None or op is None or decision is None or decision.status != "int8":
            continue
        tail = _tail(region, node, note)
        last = tail[-1] if tail else node
        operands = activation_nodes(node, op)
        bias = argument(node, op, op.params.index("bias")) if "bias" in op.params else None
        weight = argument(node, op, op.params.index("weight")) if "weight" in op.params else None
        yield Site(
            region=region,
            node=node,
            op=op,
            note=note,
            last=last,
            tail=tuple(found for each in tail if (found := OPS.of_node(each, region)) is not None),
            makers=frozenset(filter(None, (_maker(region, each) for each in operands))),
            inputs=tuple(_grid(region, each) for each in operands),
            output=next((_grid(region, user) for user in last.users if is_quantize(user)), None),
            weight=_grid(region, weight),
            bias=_bias_grid(region, bias),
            has_bias=isinstance(bias, fx.Node),
            groups=groups_of(node, op),
        )


def groups_of(node: fx.Node, op: Op) -> int:
    """Return the groups of a convolution, 1 for other ops."""
    return int(argument(node, op, op.params.index("groups"), 1)) if "groups" in op.params else 1


def _tail(region: Region, node: fx.Node, note: Note) -> list[fx.Node]:
    found, last = [], node
    while note.group is not None:
        inside = [user for user in last.users if (other := note_of(user)) and other.group == note.group]
        if not inside:
            break
        last = inside[0]
        found.append(last)
    return found


def is_quantize(node: fx.Node) -> bool:
    """Tell whether a node rounds to integers."""
    return node.target in torch_compat.QUANTIZE_OPS


def _maker(region: Region, operand: fx.Node) -> str | None:
    """Return the kind of the op that made an operand, behind its pair."""
    while operand.target in (*torch_compat.DEQUANTIZE_OPS, *torch_compat.QUANTIZE_OPS):
        source = operand.args[0]
        if not isinstance(source, fx.Node):
            return None
        operand = source
    op = OPS.of_node(operand, region)
    return None if op is None else op.kind


def _grid(region: Region, node: object) -> Encoding | None:
    """Return the grid of a pair; that of the quantize, which has the rounding, where there is one."""
    if not isinstance(node, fx.Node):
        return None
    source = node.args[0] if node.args else None
    if node.target in torch_compat.DEQUANTIZE_OPS and isinstance(source, fx.Node) and is_quantize(source):
        node = source
    if node.target not in (*torch_compat.DEQUANTIZE_OPS, *torch_compat.QUANTIZE_OPS):
        return None
    if any(isinstance(arg, fx.Node) and arg.op != "get_attr" for arg in node.args[1:]):
        return None  # found at run time
    plain = QParams.of(node)
    return {**encoding(region, node), "rounding": "half_even" if plain is None else plain.rounding}


def _bias_grid(region: Region, node: object) -> Encoding | None:
    """Tell how a bias is stored, if as integers."""
    parts = node.all_input_nodes[:2] if isinstance(node, fx.Node) else []
    if len(parts) != 2 or any(part.op != "get_attr" for part in parts):
        return None
    values, scale = (get_attr(region, str(part.target)) for part in parts)
    return {"bits": torch.iinfo(values.dtype).bits, "scale": scale.tolist()}
