"""Inputs of which calibration saw one value only: zeros or ones that stand for data. Their ranges mean nothing."""

from __future__ import annotations

import warnings

from torch import nn

from fxquant.graph.paths import join_path
from fxquant.graph.region import regions
from fxquant.passes.watch import calibrated_quantizers


def warn_of_constant_inputs(decided: nn.Module, stacklevel: int) -> None:
    """Tell the user, in one warning, which inputs of a calibrated and decided model were the same all over."""
    found = constant_inputs(decided)
    if found:
        named = ", ".join(f"{name} (only {value:g})" for name, value in found.items())
        warnings.warn(
            f"calibration saw one value in the whole of {named}, so the ranges from there on are those of no real "
            "data. Calibrate with samples of it.",
            stacklevel=stacklevel + 1,
        )


def constant_inputs(decided: nn.Module) -> dict[str, float]:
    """Return the inputs of the model's regions that were the same in all of calibration, with that value."""
    found = {}
    for path, region in regions(decided):
        inputs = {node.name for node in region.graph.nodes if node.op == "placeholder"}
        for quantizer, tensors in calibrated_quantizers(region):
            observer = quantizer.observer
            if not inputs.intersection(tensors) or observer is None or not observer.seen:
                continue
            if quantizer.spec.range is None and bool((observer.low == observer.high).all()):
                found[join_path(path, tensors[0])] = float(observer.low.flatten()[0]) + 0.0  # no minus zero
    return found
