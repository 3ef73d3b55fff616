"""The native engine for a converted model."""

from __future__ import annotations

import importlib.util
import logging
import warnings

import torch
from torch import nn

from fxquant.core.graph import Region, regions
from fxquant.core.verify import run_passes
from fxquant.engines.example import example_of
from fxquant.engines.lower import lower
from fxquant.engines.native.machine import host
from fxquant.engines.native.runner import NativeRunner
from fxquant.engines.native.settings import Native
from fxquant.errors import ConfigError

log = logging.getLogger("fxquant")


def has_native() -> bool:
    """Whether native code can be made here."""
    return importlib.util.find_spec("llvmlite") is not None and host() is not None


def check_native() -> None:
    """Raise unless it can."""
    if importlib.util.find_spec("llvmlite") is None:
        raise ConfigError("engine 'native' is not installed. Run: pip install 'fxquant[native]'.")
    if host() is None:
        raise ConfigError("engine 'native' has no kernels for this CPU: it needs AVX2 or NEON with dot products.")


def run_native(model: nn.Module, settings: Native) -> nn.Module:
    """Lower a converted model, in place, and give its regions machine code. A warning tells where none could be."""
    machine = host()
    assert machine is not None
    run_passes(model, (("lower", lower),), "converted")
    for path, region in regions(model):
        runner = NativeRunner(region._region.runner, machine, settings)
        region._region.runner = runner
        reason = _try(region, runner)
        if reason:
            runner.failed = reason
            warnings.warn(f"module {path!r} runs on onednn, not native. {reason}", stacklevel=4)
    return model


def _try(region: Region, runner: NativeRunner) -> str:
    """Make the program of the example, and compare it with the graph; the reason if that fails."""
    if region._region.filled.waiting:
        return ""
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
