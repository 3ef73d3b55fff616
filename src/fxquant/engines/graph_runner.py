"""Runs a region by its graph: op by op in Python, with hooks as in the plain graph, and under torch.func."""

from __future__ import annotations

from typing import ClassVar

from fxquant.engines.hooks import Hooks
from fxquant.engines.transformed import Transformed, takes
from fxquant.graph.lowering import Runner
from fxquant.graph.region import Region


class GraphRunner(Runner):
    """Runs the graph that an engine left."""

    hooks_cost: ClassVar[bool] = True  # kernels, while there are any: the user is told so

    def __init__(self, failed: str = "") -> None:
        self.failed = failed
        self.renew()

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self.hooks.listen(region)
        if takes(region):
            return self.transformed(region, args, kwargs)
        return region.run_graph(args, kwargs)

    def renew(self) -> None:
        """Look again: the graph was made again, so it may call other modules."""
        self.hooks, self.transformed = Hooks(told=not self.hooks_cost), Transformed()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.failed,)
