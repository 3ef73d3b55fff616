"""The float and the int8 graph as boxes and arrows. On the int8 side, a kernel is one box.

What only rounds, reads sizes or fetches weights is no box: arrows go through it, and know whether integers go there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from fxquant.graph import torch_compat
from fxquant.graph.nodes import full_path, reads_size, tensor_info
from fxquant.graph.notes import decision_of, note_of
from fxquant.graph.region import Region, regions
from fxquant.insight.sides import Sides
from fxquant.insight.twin import kind_of

Box = dict[str, Any]
Plain = dict[str, Any]


@dataclass(slots=True)
class Drawn:
    """A graph as it is shown, and the box of each node."""

    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: dict[tuple[str, str], bool] = field(default_factory=dict)  # whether integers go there
    box_of: dict[tuple[str, str], str] = field(default_factory=dict)

    def to_plain(self) -> Plain:
        arrows = [[source, to, int(whole)] for (source, to), whole in self.arrows.items()]
        return {"nodes": list(self.boxes.values()), "edges": arrows}


def draw_float(sides: Sides) -> Drawn:
    """Return a box for each op of the float model."""
    return _draw(sides.original, lambda node: node.name)


def draw_int8(sides: Sides) -> Drawn:
    """Return a box for each kernel of the quantized model."""

    def group(node: fx.Node) -> str:
        note = note_of(node)
        return note.group if note is not None and note.group else node.name

    return _draw(sides.reference, group)


def _draw(model: nn.Module, group: Callable[[fx.Node], str]) -> Drawn:
    drawn = Drawn()
    found = list(regions(model))
    for path, region in found:
        for node in region.graph.nodes:
            if not _is_shown(region, node):
                continue
            at = f"{path}/{group(node)}"
            drawn.box_of[path, node.name] = at
            box = drawn.boxes.setdefault(at, {"id": at, "path": "", "kinds": [], "nodes": [], "region": path})
            box["kinds"].append("output" if node.op == "output" else kind_of(region, node))
            box["nodes"].append(node.name)
            box["path"] = box["path"] or full_path(region, node)
            box["where"] = box.get("where") or str(node.meta.get("where", ""))
            info = tensor_info(node)
            box["shape"] = list(info.shape) if info is not None else box.get("shape")
            for source, whole in _sources(region, node):
                start = drawn.box_of.get((path, source.name))
                if start is not None and start != at:
                    drawn.arrows[start, at] = drawn.arrows.get((start, at), False) or whole
    return drawn


def _is_shown(region: Region, node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    if decision_of(node) is not None:
        return True
    if reads_size(node) or node.op == "get_attr":
        return False
    ours = getattr(node.target, "namespace", "") in ("quantized_decomposed", "fxquant")
    return not ours and bool(kind_of(region, node)) and tensor_info(node) is not None


def _sources(region: Region, node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Yield the boxes' nodes that a node reads, through all that is no box, and whether integers come from there."""
    seen: set[tuple[fx.Node, bool]] = set()
    stack = [(source, False) for source in node.all_input_nodes]
    while stack:
        source, whole = stack.pop()
        if (source, whole) in seen:
            continue
        seen.add((source, whole))
        if _is_shown(region, source):
            yield source, whole
        elif not reads_size(source):
            whole = whole or source.target in torch_compat.QUANTIZE_OPS
            stack += [(each, whole) for each in source.all_input_nodes]


def partners(sides: Sides, left: Drawn, right: Drawn) -> Iterable[tuple[str, str]]:
    """(float box, int8 box) that have the same tensor."""
    for path, pairs in sides.pairs.items():
        for node, pair in pairs.items():
            places = (pair.place, (path, str(node.meta.get("float_name", node.name))))
            at = right.box_of.get((path, node.name))
            for place in places:
                if at is not None and place in left.box_of:
                    yield left.box_of[place], at


def short_where(where: str) -> str:
    """`file.py:12`, without the directories."""
    head, _, line = where.rpartition(":")
    return f"{os.path.basename(head)}:{line}" if head else where
