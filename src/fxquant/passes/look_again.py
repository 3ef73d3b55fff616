"""See tensors again after a rewrite of the float graph changed them: run it on the inputs that calibration kept.

look_again    a calibrated graph, the tensors that changed  ->  the same, with new statistics of these
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import Tensor, fx

from fxquant.graph.algorithm import Watched
from fxquant.graph.container_reads import rebuilt, tensors_read
from fxquant.graph.interpret import PlainInterpreter
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.sample import Inputs, Sample
from fxquant.numerics.observers.watcher import Watcher
from fxquant.numerics.statistics import Statistics
from fxquant.passes.watch import seen


def watch_inputs(region: Region) -> list[Watched]:
    """Return what calibration is to keep, so that the graph can run again: some of its inputs."""
    names = _tensor_inputs(region)
    return [Watched(names, Inputs(count=len(names)))] if names else []


def kept_inputs(region: Region) -> list[list[object]]:
    """Calls of a graph that calibration kept, each with a value for every placeholder; none if these do not do."""
    names = _tensor_inputs(region)
    watcher = seen(region, names, Inputs(count=len(names))) if names else None
    if not isinstance(watcher, Sample):
        return []
    found: list[list[Any]] = []
    for call in watcher.calls():
        given = dict(zip(names, call, strict=True))
        try:
            found.append([rebuilt(node, given) for node in _placeholders(region)])
        except ValueError:
            return []
    return found


@torch.no_grad()
def look_again(region: Region, changed: Set[str]) -> None:
    """Replace what was seen of the changed tensors, by name, by what the graph as it is now shows of them."""
    path, watched = preparation_of(region).statistics_path, preparation_of(region).watched or {}
    kept = region.get_submodule(path) if path else None
    if not isinstance(kept, Statistics) or not changed:
        return
    fresh: dict[str, Watcher | FakeQuant] = {}
    for name, module in kept.items():
        if name in watched and not changed.isdisjoint(watched[name]) and not isinstance(module, Sample):
            fresh[name] = module.fresh() if isinstance(module, Watcher) else FakeQuant(module.spec, module.name)  # type: ignore[arg-type]
    by_tensor: dict[str, list[Watcher | FakeQuant]] = {}
    for name, module in fresh.items():
        kept[name] = module.train(region.training)
        for tensor in watched[name]:
            by_tensor.setdefault(tensor, []).append(module)
    for values in kept_inputs(region):
        _Looking(region, by_tensor).run(*values, enable_io_processing=False)


class _Looking(PlainInterpreter):
    """Shows tensors to watchers on the way."""

    def __init__(self, region: Region, watchers: dict[str, list[Watcher | FakeQuant]]) -> None:
        super().__init__(region)
        self.watchers = watchers

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        for watcher in self.watchers.get(n.name, ()):
            if isinstance(value, Tensor):
                watcher(value)
        return value


def _placeholders(region: Region) -> Iterator[fx.Node]:
    return (node for node in region.graph.nodes if node.op == "placeholder")


def _tensor_inputs(region: Region) -> tuple[str, ...]:
    return tuple(tensor.name for node in _placeholders(region) for tensor in tensors_read(node))
