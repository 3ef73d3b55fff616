"""Run passes over the regions of a model.

A pass takes a region and its Context, changes the region in place, and returns None; its name is that of its function,
its docstring a row of the table in docs/architecture.md. A pipeline is a tuple of passes (flows/pipelines.py). After
each pass the invariants of the stage are checked, and at the end the graph is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from fxquant.errors import VerifyError
from fxquant.graph.context import Context
from fxquant.graph.invariants import Known, verify
from fxquant.graph.late_code import outdate
from fxquant.graph.region import Region, regions
from fxquant.graph.remembered import forgotten
from fxquant.graph.shared_modules import share_again, shared_modules

Pass = Callable[[Region, Context], None]
Pipeline = tuple[Pass, ...]


def run_passes(
    model: nn.Module,
    passes: Iterable[Pass],
    context: Context | Callable[[Region], Context],
    only: Callable[[Region], bool] | None = None,
    *,
    runs: bool = True,
) -> None:
    """Map passes over all regions of a model, and check each result against the stage that it is at.

    `context` is one for all, or tells that of each region. `only` tells which regions are meant: a model may hold some
    that went ahead of the others. Where nobody `runs` the result, or other passes follow, its code is not made yet.
    """
    steps = tuple(passes)
    for path, region in [(path, region) for path, region in regions(model) if only is None or only(region)]:
        own = context if isinstance(context, Context) else context(region)
        plain: Known = {}
        shared = shared_modules(region)
        for step in steps:
            with forgotten(region):  # algorithms run the graph, which is no call that a model should remember
                result: Any = step(region, own)
            if result is not None:
                raise VerifyError(
                    f"pass {step.__name__!r} returned a {type(result).__name__}, at region {path or '<root>'!r}. A "
                    "pass changes its region in place and returns None: what it returns would be lost."
                )
            verify(region, pass_name=step.__name__, region_path=path, plain=plain)
        share_again(region, shared)
        if runs:
            region.recompile()
        else:
            outdate(region)
