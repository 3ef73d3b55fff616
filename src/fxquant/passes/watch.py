"""Statistics by tensor: what a decided graph needs to know, the watching of it, and the handing over afterwards.

    needs     a decided graph   ->  which tensors, and what of each (an observer, the means of its channels)
    watch     the float graph   ->  the same with a call beside each tensor; the tensors themselves go on as they were
    unwatch   a watched graph   ->  the float graph
    recall    a decided graph   ->  its quantizers and means have what was seen

A tensor goes by the name of its node in the float graph, which no decision changes ("site").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from fxquant.core.graph import Region
from fxquant.core.nodes import last_input
from fxquant.core.paths import free_path
from fxquant.core.plan import STATISTICS
from fxquant.core.spec import Spec
from fxquant.errors import ConfigError, StageError
from fxquant.numerics import statistics
from fxquant.numerics.channel_mean import ChannelMean
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers import Observer
from fxquant.numerics.statistics import Statistics, kept_for, label, mean_label, without_repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """The means of a tensor's channels, which lie along `axis`."""

    channels: int
    axis: int


# what, of which tensors: several where one observer is to see them all
Needs = list[tuple[tuple[str, ...], Spec | Means]]


def needs(region: Region) -> Needs:
    """What the quantizers and means of a decided graph want to see."""
    found: Needs = []
    tensors = sites(region)
    for node, module in _callers(region):
        if isinstance(module, ChannelMean):
            found.append(((_site(region, node),), Means(channels=module.total.numel(), axis=module.axis)))
        elif (kept := kept_for(module.spec)) is not None:
            together = kept.observer == "custom"
            found.append((tensors[module.name] if together else (_site(region, node),), kept))
    return found


def sites(region: Region) -> dict[str, tuple[str, ...]]:
    """The tensors that each quantizer of a decided graph observes."""
    found: dict[str, dict[str, None]] = {}
    for node, module in _callers(region):
        if isinstance(module, FakeQuant):
            found.setdefault(module.name, {})[_site(region, node)] = None
    return {name: tuple(tensors) for name, tensors in found.items()}


def name_sites(region: Region) -> Region:
    """Note them in the region, so that it can load what a calibrated model saw of these tensors."""
    region._region.sites = sites(region)
    return region


def watch(region: Region, wanted: Iterable[Needs]) -> Region:
    """Watch what any of several decided graphs needs, each tensor once."""
    path, made = free_path(region, STATISTICS), Statistics()
    region.add_module(path, made)
    region._region.statistics_path = path
    together: dict[tuple[str, ...], list[Spec | Means]] = {}
    for tensors, what in (need for each in wanted for need in each):
        together.setdefault(tensors, []).append(what)
    nodes = {node.name: node for node in region.graph.nodes}
    for tensors, asked in together.items():
        for name, module in _watchers("_and_".join(tensors), asked):
            if name in made:
                raise ConfigError(
                    f"two observers of your own are to watch {' and '.join(tensors)} for the same grid. Give the rules "
                    "that meet there one factory."
                )
            made[name] = module
            for node in (nodes[tensor] for tensor in tensors):
                with region.graph.inserting_after(last_input(node)):
                    region.graph.call_module(f"{path}.{name}", (node,))
    made.train(region.training)
    region.recompile()
    return region


def unwatch(region: Region) -> Region:
    """Remove the calls of `watch`. What they have seen stays until `recall`."""
    path = region._region.statistics_path
    for node in list(region.graph.nodes):
        if path and node.op == "call_module" and str(node.target).startswith(f"{path}."):
            region.graph.erase_node(node)
    region.recompile()
    return region


def recall(region: Region) -> Region:
    """Hand what was seen to the quantizers and means of a decided graph."""
    path = region._region.statistics_path
    if not path:
        return region
    kept = region.get_submodule(path)
    assert isinstance(kept, Statistics)
    tensors = sites(region)
    for node, module in _callers(region):
        if isinstance(module, ChannelMean):
            mean = kept.mean_of(_site(region, node), module.total.numel(), module.axis)
            if mean is not None:
                module.merge(mean)
        elif (wanted := kept_for(module.spec)) is not None and module.name in tensors:
            statistics.recall(module, _seen(kept, tensors.pop(module.name), wanted))
    region.delete_submodule(path)
    region._region.statistics_path = ""
    return region


def _seen(kept: Statistics, tensors: tuple[str, ...], wanted: Spec) -> list[Observer]:
    found = kept.of(tensors, wanted)
    if found is None:
        raise StageError(
            f"not all of the tensors {', '.join(tensors)} were watched in calibration ({label(wanted)}): the rules and "
            "targets that the model was prepared with had no need for it. Prepare and calibrate it with these."
        )
    return found


def _watchers(name: str, asked: list[Spec | Means]) -> Iterator[tuple[str, FakeQuant | ChannelMean]]:
    for spec in without_repeats(each for each in asked if isinstance(each, Spec)):
        yield f"{name}_{label(spec)}", FakeQuant(spec, name)
    for means in dict.fromkeys(each for each in asked if isinstance(each, Means)):
        yield f"{name}_{mean_label(means.channels, means.axis)}", ChannelMean(means.channels, means.axis)


def _callers(region: Region) -> Iterator[tuple[fx.Node, FakeQuant | ChannelMean]]:
    """The calls of a decided graph that observe something."""
    path = region._region.quantizer_path
    for node in region.graph.nodes:
        if str(node.target).startswith(f"{path}.") and node.kwargs.get("observe", True):
            module = region.get_submodule(str(node.target))
            if isinstance(module, (FakeQuant, ChannelMean)):
                yield node, module


def _site(region: Region, node: fx.Node) -> str:
    """The tensor that a quantizer looks at; in the state of observing, quantizers let it pass."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    while source.op == "call_module" and isinstance(region.get_submodule(str(source.target)), FakeQuant):
        earlier = source.args[0]
        assert isinstance(earlier, fx.Node)
        source = earlier
    return str(source.meta.get("site", source.name))
