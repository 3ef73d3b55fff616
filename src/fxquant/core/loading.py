"""Let a region load the state dicts of its earlier selves: the float model's, and the calibrated model's.

float         parameters that capture moved into a stock module go by their old name there: `w1` for `w1.weight`, or
              have the other orientation (`addmm` takes its weight as [in, out])
calibrated    what was seen of the tensors goes to the quantizers that are trained on them; else what the modules of the
              region say themselves: one with a method `read_calibrated` rewrites its part
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fxquant.core.paths import free_path
from fxquant.core.plan import STATISTICS


def adapt_state(region: nn.Module, state: Any, state_dict: dict[str, Any], prefix: str) -> None:
    """Rewrite `state_dict` in place for a region with this RegionState. The region's own state is left alone."""
    if state.stage == "converted":
        return
    if state.statistics_path:
        known = region.get_submodule(state.statistics_path)._modules
        quantizers = f"{prefix}{state.statistics_path}." if known else None
    else:
        quantizers = f"{prefix}{state.quantizer_path}." if state.quantizers else None
    if state.sites is not None:
        read: Any = region.get_submodule(state.quantizer_path)
        kept, own = (f"{prefix}{path}." for path in (free_path(region, STATISTICS), state.quantizer_path))
        read.read_statistics(state_dict, kept, own, state.sites)
    if quantizers is None or not any(key.startswith(quantizers) for key in state_dict):
        # a prepared graph without quantizers (weights only) cannot tell whose state it is: only names are sure
        _rename(state.moved or {}, state_dict, prefix, turn=quantizers is not None or state.stage != "prepared")
        return
    readers = {path: module for path, module in region.named_modules() if hasattr(type(module), "read_calibrated")}
    if not readers:
        return
    paths = {id(module): f"{prefix}{path}." for path, module in region.named_modules()}
    for path, module in readers.items():
        module.read_calibrated(state_dict, f"{prefix}{path}.", paths)


def _rename(moved: dict[str, tuple[str, bool]], state_dict: dict[str, Any], prefix: str, turn: bool) -> None:
    for old, (new, transposed) in moved.items():
        if prefix + old in state_dict and (turn if old == new else prefix + new not in state_dict):
            value = state_dict.pop(prefix + old)
            state_dict[prefix + new] = value.t() if transposed else value
