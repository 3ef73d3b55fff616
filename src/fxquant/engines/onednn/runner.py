"""Runs a lowered region: its graph, by Python, with hooks as in the plain graph."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fxquant.engines.hooks import Hooks
from fxquant.graph import torch_compat
from fxquant.graph.lowering import Runner, filled_graph
from fxquant.graph.region import Region


class OneDnn(Runner):
    """The plain way to run kernels: one after the other."""

    engine = "onednn"

    def __init__(self, failed: str = "") -> None:
        self.failed = failed  # why no runtime has the region, if one was asked for
        self.hooks = Hooks()
        self._plain: Callable[..., object] | None = None  # runs the QDQ graph

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if torch_compat.is_transformed():  # oneDNN's ops have no rules for vmap, or for gradients
            if self._plain is None:
                self._plain = type(Region(nn.Module(), filled_graph(region))).forward
            return self._plain(region, *args, **kwargs)
        self.hooks.listen(region)
        return region.run_graph(args, kwargs)

    def renew(self) -> None:
        """The graph was made again, so it may call other modules."""
        self.hooks, self._plain = Hooks(), None

    def __reduce__(self) -> tuple[object, ...]:
        return OneDnn, (self.failed,)
