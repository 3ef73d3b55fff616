"""How the values of the float model's tensors are distributed, over all batches, in bins between known ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn

from fxquant.flows.calibrate import run_batch
from fxquant.graph.interpret import PlainInterpreter, interpret
from fxquant.graph.lowering import run_instead, run_own_graph
from fxquant.graph.region import Region, regions
from fxquant.insight.twin import Place

BINS = 64


def histograms(
    twin: nn.Module, data: Iterable[object], ranges: Mapping[Place, tuple[float, float]]
) -> dict[Place, list[int]]:
    """Counts of the values of each tensor, in BINS equal bins over its range."""
    counts = {place: torch.zeros(BINS) for place, (low, high) in ranges.items() if low < high}
    with torch.no_grad(), _counting(twin, counts, ranges):
        for batch in data:
            run_batch(twin, batch)
    return {place: [int(count) for count in found] for place, found in counts.items()}


@contextmanager
def _counting(
    twin: nn.Module, counts: dict[Place, Tensor], ranges: Mapping[Place, tuple[float, float]]
) -> Iterator[None]:
    for path, region in regions(twin):
        run_instead(region, _forward(path, counts, ranges))
    try:
        yield
    finally:
        for _, region in regions(twin):
            run_own_graph(region)


def _forward(
    path: str, counts: dict[Place, Tensor], ranges: Mapping[Place, tuple[float, float]]
) -> Callable[..., object]:
    def forward(region: Region, *args: object, **kwargs: object) -> object:
        return interpret(_Counting(region, path, counts, ranges), args, kwargs)

    return forward


class _Counting(PlainInterpreter):
    def __init__(
        self, region: Region, path: str, counts: dict[Place, Tensor], ranges: Mapping[Place, tuple[float, float]]
    ) -> None:
        super().__init__(region)
        self.path, self.counts, self.ranges = path, counts, ranges

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        place = (self.path, n.name)
        if place in self.counts and isinstance(value, Tensor) and value.is_floating_point():
            self.counts[place] += count_values(value, *self.ranges[place])
        return value


def count_values(value: Tensor, low: float, high: float) -> Tensor:
    """Tell how many values are in each of BINS equal bins; those outside are left out."""
    return torch.histc(value.detach().float().cpu(), BINS, low, high)
