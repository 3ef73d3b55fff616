"""Inputs of which calibration saw one value only: zeros or ones that stand for data. Their ranges mean nothing."""

from __future__ import annotations

import warnings

from torch import nn

from fxquant.graph.paths import join_path
from fxquant.graph.region import plan_of, regions
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.passes.watch import sites


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
        container = plan_of(region).quantizer_path
        for name, tensors in sites(region).items() if container else ():
            quantizer = region.get_submodule(f"{container}.{name}")
            if not inputs.intersection(tensors) or not isinstance(quantizer, FakeQuant) or quantizer.spec.dynamic:
                continue
            observer = quantizer.observer
            if observer is None or not observer.seen or quantizer.spec.range is not None:
                continue
            if bool((observer.low == observer.high).all()):
                found[join_path(path, tensors[0])] = float(observer.low.flatten()[0]) + 0.0  # no minus zero
    return found
