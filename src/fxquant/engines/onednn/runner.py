"""Runs a lowered region: its graph, by Python, with hooks as in the plain graph."""

from __future__ import annotations

from fxquant.engines.hooks import Hooks
from fxquant.engines.transformed import Transformed, takes
from fxquant.graph.lowering import Runner
from fxquant.graph.region import Region


class OneDnn(Runner):
    """The plain way to run kernels: one after the other."""

    engine = "onednn"

    def __init__(self, failed: str = "") -> None:
        self.failed = failed  # why no runtime has the region, if one was asked for
        self.hooks = Hooks()
        self.transformed = Transformed()

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self.hooks.listen(region)
        if takes(region):
            return self.transformed(region, args, kwargs)
        return region.run_graph(args, kwargs)

    def renew(self) -> None:
        """The graph was made again, so it may call other modules."""
        self.hooks, self.transformed = Hooks(), Transformed()

    def __reduce__(self) -> tuple[object, ...]:
        return OneDnn, (self.failed,)
