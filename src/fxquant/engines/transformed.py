"""A region under torch.func: its QDQ graph, in functions of torch's plain ops.

vmap and the like have rules for those. They have none for the kernels of an engine, and for the ops of a QDQ graph only
a loop with a warning.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fxquant.graph import torch_compat
from fxquant.graph.lowering import filled_graph, run_instead, run_own_graph, runs_own_graph
from fxquant.graph.region import Region


class Transformed:
    """Runs a region so; the code is made at the first call."""

    def __init__(self) -> None:
        self._forward: Callable[..., object] | None = None

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if self._forward is None:
            graph = filled_graph(region)
            for node in graph.nodes:
                if node.op == "call_function":
                    node.target = torch_compat.in_plain_ops(node.target)
            self._forward = type(Region(nn.Module(), graph)).forward
        run_instead(region, self._forward)
        try:
            return region.run_graph(args, kwargs)  # with the hooks of the region itself
        finally:
            run_own_graph(region)


def takes(region: Region) -> bool:
    """Tell whether a call is run so: not while hooks on modules inside have the region call these."""
    return torch_compat.is_transformed() and runs_own_graph(region)
