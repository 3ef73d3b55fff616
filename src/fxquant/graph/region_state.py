"""The state_dict of a region: names as the float model has them, and what else decides what the tensors mean.

Whether torch's ops were written down, and what algorithms moved, is in the metadata, so that what loads the tensors
computes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from fxquant.graph.adapt_state import adapt_state, adapt_stock, add_flat, drop_flat, name_flat, refuse_integers
from fxquant.graph.moved_calls import keep_moved, read_moved
from fxquant.graph.notes import STATISTICS
from fxquant.graph.paths import free_path
from fxquant.graph.written_down import keep_written, read_written

if TYPE_CHECKING:
    from fxquant.graph.lowering import Runner
    from fxquant.graph.region import Region
    from fxquant.graph.region_parts import RegionParts


def give_state(graph: fx.Graph, parts: RegionParts, found: dict[str, object], prefix: str) -> None:
    """Name the tensors of a flat child as the region's own, `conv.weight` and not `conv.op.weight`; add metadata."""
    keep_written(_runner(parts), found, prefix[:-1])
    keep_moved(graph, found, prefix[:-1])
    if parts.origin.flat:
        drop_flat(parts.origin.flat, found, prefix)


def take_state(
    region: Region,
    parts: RegionParts,
    state_dict: dict[str, object],
    prefix: str,
    metadata: dict[str, object],
    errors: list[str],
) -> None:
    """Bring a state_dict into the form that this region takes, and let it compute as where the state was taken."""
    if parts.origin.flat:
        # statistics of a calibrated model are none of the child's tensors, also where this one has none
        add_flat(parts.origin.flat, state_dict, prefix, {*region._modules, free_path(region, STATISTICS)})
        parts.told = (prefix, errors)
    adapt_stock(parts.origin.user_class, state_dict, prefix)
    if parts.lowering is None:
        refuse_integers(region, state_dict, prefix, errors)
        adapt_state(region, parts.origin, parts.preparation, state_dict, prefix, errors)
    read_written(_runner(parts), metadata)
    read_moved(region, metadata)


def after_load(region: Region, parts: RegionParts, incompatible_keys: tuple[list[str], list[str]]) -> None:
    """Renew what was made of numbers: a state_dict was loaded into a region and all that is in it."""
    if parts.told is not None:
        prefix, errors = parts.told
        parts.told = None
        name_flat(parts.origin.flat, prefix, (*incompatible_keys, errors))
    if parts.lowering is not None and parts.lowering.filled is not None:
        parts.lowering.filled.keep_up(region)
    runner = _runner(parts)
    if runner is not None:
        runner.renew()


def _runner(parts: RegionParts) -> Runner | None:
    return None if parts.lowering is None else parts.lowering.runner
