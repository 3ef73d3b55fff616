"""Runs a region that was lowered to torch's oneDNN kernels."""

from __future__ import annotations

from torch import fx

from fxquant.engines.graph_runner import GraphRunner
from fxquant.engines.made_from import MadeFrom, made_from
from fxquant.engines.onednn.direct import DirectCalls
from fxquant.graph import torch_compat
from fxquant.graph.lowering import runs_own_graph
from fxquant.graph.region import Region

_LONGEST = 64  # calls


class OneDnn(GraphRunner):
    """The plain way to run kernels, one after the other. `failed`: why no runtime has the region, if one was asked.

    Kernels are called directly once the model is as it was in the call before. One that writes to its own tensors never
    is: the longer that goes on, the more calls it takes until there is another try.
    """

    engine = "onednn"
    # with its region: a copy that was not made by copy.copy has the same runner
    _known: tuple[Region, MadeFrom, DirectCalls] | None

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not self._is_plain(region, args, kwargs):
            return super().__call__(region, args, kwargs)
        known = self._known
        if known is not None and known[0] is region and known[1].holds():
            self._wait = self._waited = 0
            return region.run_graph(args, kwargs, known[2])
        self._wait -= 1
        if self._wait < 0:
            made = made_from(region)
            self._known = None if made.blind else (region, made, DirectCalls(region))
            self._wait = self._waited = min(2 * self._waited + 1, _LONGEST)
        return super().__call__(region, args, kwargs)

    def renew(self) -> None:
        super().renew()
        self._known = None
        self._wait = self._waited = 0

    def _is_plain(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Tell whether nothing but the code of the graph is to run: no hooks, no compiler, no mode of torch."""
        if self.hooks.listen(region) or not runs_own_graph(region) or not torch_compat.plain_mode():
            return False
        if region.__dict__.get("_compiled_call_impl") is not None:  # by module.compile()
            return False
        return not any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))
