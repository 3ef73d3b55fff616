"""Cut a decided graph into segments that are reconstructed one after the other.

A segment is a run of nodes in the order of the graph. It ends before a quantizer or a weight, where as few tensors as
possible go on: at the ends of residual blocks, that is one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import fx

from fxquant.algorithms.weighted_op import weighted_ops
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.passes.find_quantizer import quantizer_of

_CONSTANT = ("get_attr", "output")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """`takes` are values from before it, `gives` what comes after it, or the caller, takes from it."""

    nodes: tuple[fx.Node, ...]
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]


def segments(region: Region, context: Context, *, least: int = 2, most: int = 8) -> list[Segment]:
    """Segments with `least` to `most` weights each, but for the last."""
    nodes = [node for node in region.graph.nodes if node.op not in ("placeholder", *_CONSTANT)]
    weighted = {op.node for op in weighted_ops(region, context)}
    place = {node: index for index, node in enumerate(nodes)}
    live = _live(region, place)
    ends: list[int] = []
    start, count = 0, 0
    allowed: list[int] = []
    for index, node in enumerate(nodes):
        if index > start and count and (quantizer_of(region, node) is not None or node in weighted):
            allowed.append(index)
            best = min(allowed, key=lambda end: (live[end], -end))
            if (live[index] <= 1 and count >= least) or count >= most:
                cut = index if live[index] <= 1 else best
                ends.append(cut)
                start, allowed = cut, []
                count = sum(other in weighted for other in nodes[cut:index])
        count += node in weighted
    bounds = [0, *ends, len(nodes)]
    return [_segment(nodes[low:high]) for low, high in itertools.pairwise(bounds) if high > low]


def _live(region: Region, place: dict[fx.Node, int]) -> list[int]:
    """Tell how many values are made before each place in the graph and used from there on."""
    changes = [0] * (len(place) + 2)
    for node in region.graph.nodes:
        uses = [place[user] for user in node.users if user in place]
        if node.op not in _CONSTANT and uses:
            changes[place.get(node, -1) + 1] += 1
            changes[max(uses) + 1] -= 1
    found, total = [], 0
    for change in changes:
        total += change
        found.append(total)
    return found


def _segment(nodes: list[fx.Node]) -> Segment:
    inside = set(nodes)
    takes = {source: None for node in nodes for source in node.all_input_nodes if source not in inside}
    gives = [node for node in nodes if any(user not in inside for user in node.users)]
    return Segment(
        nodes=tuple(nodes), takes=tuple(node for node in takes if node.op not in _CONSTANT), gives=tuple(gives)
    )
