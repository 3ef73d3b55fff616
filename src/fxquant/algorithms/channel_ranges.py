"""What calibration saw of the channels that weights and norms make: which to watch, and their ranges."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from fxquant.algorithms.channel_groups import ChannelGroup
from fxquant.graph.algorithm import Watched
from fxquant.graph.context import Context
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.numerics.observers.channel_extremes import ChannelExtremes, Extremes
from fxquant.ops.table import activation_nodes
from fxquant.passes.look_again import watch_inputs
from fxquant.passes.watch import float_name, seen

Ranges = dict[fx.Node, tuple[Tensor, Tensor]]


def watch_ranges(region: Region, context: Context) -> list[Watched]:
    """Return what calibration is to keep: the extremes of channels, and inputs to look again after they are scaled."""
    found = [Watched(float_name(region, node), statistic) for node, statistic in _extremes(region, context)]
    return [*found, *watch_inputs(region)] if found else []


def ranges_of(region: Region, context: Context) -> Ranges:
    """(low, high) of the channels that weights and norms were seen to make and to take."""
    found: Ranges = {}
    for node, statistic in _extremes(region, context):
        watcher = seen(region, node.name, statistic)
        if isinstance(watcher, ChannelExtremes) and (ends := watcher.range()) is not None:
            found[node] = ends[0].cpu(), ends[1].cpu()
    return found


def largest_of(group: ChannelGroup, ranges: Ranges) -> Tensor:
    """Return each channel's largest magnitude beside that of the widest one, in any tensor of a group that was seen.

    A mean may be small where what it is the mean of is not: both have to fit their grid after they are scaled.
    """
    cut = not {"relu", "clamp"}.isdisjoint(group.between) and {"add", "mul"}.isdisjoint(group.between)
    found = []
    for taker, source in group.takers.items():
        low, high = ranges[source]
        every = torch.maximum(high, -low)
        found += [every[start : start + group.channels] for start in group.starts_in(taker)]
    for low, high in (ranges[node] for node in group.makers):
        found.append(high.clamp_min(0) if cut else torch.maximum(high, -low))
    return torch.stack([each / each.max().clamp_min(1e-30) for each in found]).amax(0)


def _extremes(region: Region, context: Context) -> Iterator[tuple[fx.Node, Extremes]]:
    for node in region.graph.nodes:
        op, info = context.ops.of_node(node, region), tensor_info(node)
        if op is None or info is None or node.op != "call_module" or not info.is_float or len(info.shape) < 2:
            continue
        if op.channels_at is not None and op.channel_axis == 0:
            yield node, Extremes(channels=info.shape[op.channels_at], axis=op.channels_at)
            source = activation_nodes(node, op)[0]
            taken = tensor_info(source)
            if taken is not None and taken.is_float and len(taken.shape) > 1:
                yield source, Extremes(channels=taken.shape[op.channels_at], axis=op.channels_at)
        elif type(region.get_submodule(str(node.target))) is nn.LayerNorm:
            yield node, Extremes(channels=info.shape[-1], axis=-1)
