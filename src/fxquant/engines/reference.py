"""The reference engine: the QDQ graph as it is, which the other engines agree with.

torch's ops that find a range raise on a tensor without elements, where the float op gives an empty result. Here:

    choose_qparams(x) -> (scale, zero_point) of x, or (1, 0) if x is empty
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.engines.graph_runner import GraphRunner
from fxquant.graph import torch_compat
from fxquant.graph.context import Context
from fxquant.graph.region import Region, lowering_of, regions
from fxquant.graph.run_passes import run_passes
from fxquant.passes.fill_grids import fill_grids


def run_reference(model: nn.Module) -> nn.Module:
    """Let the regions of a converted model run their QDQ graphs."""
    run_passes(model, (allow_empty,), Context())
    for _, region in regions(model):
        lowering_of(region).runner = Plain()
    return model


class Plain(GraphRunner):
    """Runs the graph of a region as it is."""

    engine = "reference"
    hooks_cost = False


def allow_empty(region: Region, context: Context | None = None) -> None:
    """Let the QDQ graph of a region, in place, run on empty tensors. One that waits for its grids is left."""
    fill_grids(region)
    lowering_of(region).lower = allow_empty
    for node in region.graph.nodes:
        if node.target in _WITH_EMPTY:
            node.target = _WITH_EMPTY[node.target]
    region.recompile()


def choose_qparams(x: Tensor, *ends: object) -> tuple[Tensor, Tensor]:
    return torch_compat.CHOOSE_QPARAMS(x, *ends) if x.numel() else _any(x)


def choose_qparams_symmetric(x: Tensor, *ends: object) -> tuple[Tensor, Tensor]:
    return torch_compat.CHOOSE_QPARAMS_SYMMETRIC(x, *ends) if x.numel() else _any(x)


def _any(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones((), dtype=torch.float64, device=x.device), torch.zeros((), dtype=torch.int64, device=x.device)


_WITH_EMPTY = {
    torch_compat.CHOOSE_QPARAMS: choose_qparams,
    torch_compat.CHOOSE_QPARAMS_SYMMETRIC: choose_qparams_symmetric,
}
