"""Rewrite the graphs of a converted model, and again whenever their numbers change."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fxquant.graph.context import Context
from fxquant.graph.region import Region, lowering_of
from fxquant.graph.run_passes import run_passes


def rewrite_regions(model: nn.Module, lower: Callable[[Region], Region]) -> nn.Module:
    """Let `lower` rewrite the QDQ graph of each region in place, now and after every change of its grids.

    The QDQ graph itself is kept: it is what is saved and exported. `lower` goes along when the model is copied or
    pickled, so it is a function of a module. A region that waits for a state_dict is rewritten when it has it.
    """

    def rewrite(region: Region, context: Context) -> None:
        lowering = lowering_of(region)
        lowering.lower = lower
        if not lowering.waiting:
            lower(region)

    run_passes(model, (rewrite,), Context())
    return model
