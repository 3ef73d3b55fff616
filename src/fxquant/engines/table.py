"""The engines. There is no other list of them: names, targets and what is installed are read from here."""

from __future__ import annotations

import dataclasses
import importlib.util

from torch import nn

from fxquant.config.forms import closest
from fxquant.config.target import Target
from fxquant.engines.engine import Engine
from fxquant.engines.native.apply import has_native, run_native
from fxquant.engines.native.settings import Native
from fxquant.engines.onednn.lower import lower
from fxquant.engines.reference import run_reference
from fxquant.engines.runtimes.regions import run_regions
from fxquant.errors import ConfigError
from fxquant.graph.context import Context
from fxquant.graph.run_passes import run_passes
from fxquant.targets.onnxruntime import onnxruntime
from fxquant.targets.openvino import openvino
from fxquant.targets.x86 import onednn, x86


def native_engine(settings: Native | None = None) -> Engine:
    """Return the native engine, with settings of its own."""
    return Engine(
        name="native",
        target=x86,
        available=has_native,
        apply=lambda model: run_native(model, settings or Native()),
        hint="It needs Linux, llvmlite (pip install 'fxquant[native]') and a CPU with AVX2, or NEON with dot products.",
    )


def _run_onednn(model: nn.Module) -> nn.Module:
    run_passes(model, (lower,), Context())
    return model


def _run_onnxruntime(model: nn.Module) -> nn.Module:
    from fxquant.engines.runtimes.onnxruntime import OnnxRuntime

    return run_regions(model, OnnxRuntime)


def _run_openvino(model: nn.Module) -> nn.Module:
    from fxquant.engines.runtimes.openvino import OpenVino

    return run_regions(model, OpenVino)


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in (*packages, "onnx", "onnxscript"))


# the plain QDQ graph, which the others agree with
REFERENCE = Engine(name="reference", target=x86, available=lambda: True, apply=run_reference)
ENGINES = (
    # where torch lacks a kernel, that op runs as in the plain graph
    Engine(name="onednn", target=onednn, available=lambda: True, apply=_run_onednn),
    REFERENCE,
    native_engine(),
    Engine(
        name="onnxruntime",
        target=onnxruntime,
        available=lambda: _installed("onnxruntime"),
        apply=_run_onnxruntime,
        hint="Run: pip install 'fxquant[onnxruntime]'.",
    ),
    Engine(
        name="openvino",
        target=openvino,
        available=lambda: _installed("openvino"),
        apply=_run_openvino,
        hint="Run: pip install 'fxquant[openvino]'.",
    ),
)


def default_engine() -> Engine:
    """Return the native engine where it can run, else oneDNN."""
    return next(engine for engine in (as_engine("native"), as_engine("onednn")) if engine.available())


def as_engine(engine: Engine | Native | str | None) -> Engine:
    """Return an engine from its name, its settings, or itself; None is the default."""
    if engine is None:
        return default_engine()
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, Native):
        return native_engine(engine)
    found = next((each for each in ENGINES if each.name == engine), None)
    if found is None:
        names = (*(each.name for each in ENGINES), "auto")
        near = closest(str(engine), names)
        raise ConfigError(f"engine {engine!r} is unknown.{near} Known: {', '.join(names)}; or give a fxquant.Engine.")
    return found


def available_engines() -> tuple[Engine, ...]:
    """Return the engines that can run here, without "reference"."""
    return tuple(engine for engine in ENGINES if engine is not REFERENCE and engine.available())


def targets_of_engines() -> tuple[Target, ...]:
    """Return the targets of all engines: what a model that is prepared without a target may be decided for.

    Of those that differ in the limits of weights alone there is one, as the same tensors are watched for them.
    """
    found: list[Target] = []
    for target in (engine.target() for engine in ENGINES):
        if not any(_same_activations(target, other) for other in found):
            found.append(target)
    return tuple(found)


def _same_activations(a: Target, b: Target) -> bool:
    return a == dataclasses.replace(b, name=a.name, weight=b.weight.with_(limits=a.weight.limits))
