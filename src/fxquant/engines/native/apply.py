"""The native engine for a converted model."""

from __future__ import annotations

import importlib.util
import logging

import torch
from torch import nn

from fxquant.engines.example import example_of
from fxquant.engines.known_code import unknown_code
from fxquant.engines.native.machine import host
from fxquant.engines.native.runner import NativeRunner
from fxquant.engines.native.settings import Native
from fxquant.engines.native.shapes import changes
from fxquant.engines.onednn.lower import lower
from fxquant.engines.onednn.runner import OneDnn
from fxquant.errors import ConfigError
from fxquant.graph.context import Context
from fxquant.graph.region import Region, lowering_of, regions
from fxquant.graph.run_passes import run_passes

log = logging.getLogger("fxquant")


def has_native() -> bool:
    """Tell whether native code can be made here."""
    return importlib.util.find_spec("llvmlite") is not None and host() is not None


def run_native(model: nn.Module, settings: Native) -> nn.Module:
    """Lower a converted model, in place, and give its regions machine code. Where none could be, they run on oneDNN."""
    machine = host()
    assert machine is not None
    remember = {path for path, region in regions(model) if changes(region, region.graph)}
    run_passes(model, (lower,), Context())
    for path, region in regions(model):
        lowering = lowering_of(region)
        assert isinstance(lowering.runner, OneDnn)
        runner = NativeRunner(lowering.runner, machine, settings)
        lowering.runner = runner
        if path not in remember:  # the example is no call that a model should remember
            runner.refusal = _try(region, runner)
        if runner.failed:  # `explain` says so, too
            log.info("module %r runs on onednn, not native. %s", path, runner.failed)
    return model


def _try(region: Region, runner: NativeRunner) -> str:
    """Make the program of the example, and compare it with the graph; the reason if that fails."""
    if lowering_of(region).waiting:
        return ""
    if reason := unknown_code(region):
        return reason
    try:
        example = example_of(region)
    except ConfigError:
        return ""  # no call of it was seen; code is made when one comes
    with torch.no_grad():
        try:
            runner(region, (), example)
        except (RuntimeError, IndexError, ValueError) as error:  # of the inputs, which are made up
            log.info("engine='native' makes no code for made-up inputs, on which the graph fails: %s", error)
    return "" if runner.scan.reads(region) else "; ".join(runner.refused.values())
