"""SmoothQuant: take outliers out of the inputs of linears, into their weights.

    s_c = w_c^(1 - a) / x_c^a        x: the largest |x| of a channel, w: of the weight's column, a: the strength

The input is multiplied by s_c and the columns of the weight are divided by it (Xiao et al., 2022). The factor goes into
what makes the input, a layer norm or a weight; where something else makes it, or takes it as well, the input stays as
it is, and the Decision of the linear says why. Without a strength, smooth_norms.py finds one by trying.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from fxquant.algorithms.channel_groups import ChannelGroup, channel_groups
from fxquant.algorithms.channel_ranges import Ranges, largest_of, ranges_of, watch_ranges
from fxquant.algorithms.scale_group import columns_of, scale_group
from fxquant.algorithms.smooth_norms import has_norms, smooth_norms
from fxquant.algorithms.weighted_op import weighted_ops
from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.notes import note_of, remark
from fxquant.graph.region import Region
from fxquant.ops.table import activation_nodes
from fxquant.passes.candidates import choice_of
from fxquant.passes.look_again import kept_inputs, look_again, watch_inputs

_LEAST = 1e-2  # of the largest: what a smaller range counts as
_WORTH = 1.05  # a factor below that leaves things as they are


@dataclass(frozen=True, kw_only=True, slots=True)
class SmoothQuant(Algorithm):
    """Smooth the inputs of linears that are quantized, in static and dynamic mode.

    `strength` says how much of the range goes into the weights: 0 nothing, 1 all of it. None tries some on what layer
    norms give to linears, and takes for each the one that costs least, if any pays. Weight-only linears have no use
    for it, and weights of less than 8 bits no room: they are left as they are.
    """

    strength: float | None = 0.5

    def __post_init__(self) -> None:
        if self.strength is not None and not 0 <= self.strength <= 1:
            raise ConfigError(f"SmoothQuant(strength={self.strength!r}): expected a number from 0 to 1, such as 0.5.")

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        linears = [op for op in weighted_ops(region, context) if op.axis == -1 and op.spec.bits >= 8]
        notes = [note_of(op.node) for op in linears]
        if not any(note is not None and any(note.inputs) for note in notes):
            return ()
        if self.strength is None:
            return watch_inputs(region) if has_norms(region) else ()
        return watch_ranges(region, context)

    def adapt(self, region: Region, context: Context) -> None:
        linears = [node for node in region.graph.nodes if _is_meant(region, node, context)]
        if not linears or not kept_inputs(region):
            return
        if self.strength is None:
            smooth_norms(region, context, linears)
            return
        ranges, changed = ranges_of(region, context), set[str]()
        by_taker = {node: group for group in channel_groups(region, context) for node in group.takers}
        done: set[int] = set()
        for node in linears:
            group = by_taker.get(node)
            why = _refused(node, group, ranges, context, region)
            if why:
                remark(node, f"input not smoothed: {why}")
            elif group is not None and id(group) not in done:
                done.add(id(group))
                changed |= _smooth(region, group, ranges, self.strength)
        look_again(region, changed)


def _smooth(region: Region, group: ChannelGroup, ranges: Ranges, strength: float) -> set[str]:
    columns = columns_of(region, group, [*group.takers]).cpu().float()
    largest = largest_of(group, ranges)
    tops = [values.clamp_min(_LEAST * float(values.max()) or 1.0) for values in (largest, columns)]
    factors = tops[1] ** (1 - strength) / tops[0] ** strength
    factors = factors / factors[largest.argmax()]  # the widest channel keeps its range; the others come closer
    if float(torch.maximum(factors, 1 / factors).max()) < _WORTH:
        return set()
    makers = ", ".join(str(node.target) for node in group.makers)
    for node in group.takers:
        span = f"{float(factors.min()):.2g} to {float(factors.max()):.2g}"
        remark(node, f"input smoothed by {span}, in {makers}")
    return scale_group(region, group, factors)


def _is_meant(region: Region, node: fx.Node, context: Context) -> bool:
    """Tell whether a node is a linear with a quantized input and weight."""
    op, choice = context.ops.of_node(node, region), choice_of(node)
    if op is None or op.channels_at != -1 or node.op != "call_module" or choice is None or choice.qconfig is None:
        return False
    weight = choice.qconfig.weight
    return isinstance(weight, Spec) and weight.bits >= 8 and choice.qconfig.input_spec(0) is not None


def _refused(node: fx.Node, group: ChannelGroup | None, ranges: Ranges, context: Context, region: Region) -> str:
    if group is None:
        op = context.ops.of_node(node, region)
        source = activation_nodes(node, op)[0] if op is not None else node
        made = context.ops.of_node(source, region)
        return f"it comes from {made.kind if made is not None else source.name}, which takes no factor"
    if group.refused:
        return group.refused
    if group.clips:
        return "it is clipped"
    return "" if all(source in ranges for source in group.takers.values()) else "nothing was seen of it"
