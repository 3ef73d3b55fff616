"""Engines by name, and the fastest of them by measuring."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from torch import nn

from fxquant.core.graph import regions
from fxquant.core.own import copy_model
from fxquant.core.verify import run_passes
from fxquant.engines.example import example_of
from fxquant.engines.lower import lower
from fxquant.engines.native.apply import check_native, has_native, run_native
from fxquant.engines.native.settings import Native
from fxquant.engines.runtime_regions import outermost, run_regions
from fxquant.engines.support import supports
from fxquant.engines.timing import time_interleaved
from fxquant.errors import ConfigError, FxQuantError, StageError
from fxquant.passes.fill_grids import fill_grids

Name = Literal["onednn", "reference", "native", "onnxruntime", "openvino", "auto"]
Engine = Name | Native
_RUNTIMES = ("onnxruntime", "openvino")


def check_engine(engine: str | Native) -> None:
    """Raise unless the name is one of an engine that is there."""
    if isinstance(engine, Native):
        return check_native()
    if engine not in get_args(Name):
        raise ConfigError(f"engine {engine!r} is unknown. Known: {', '.join(get_args(Name))}.")
    if engine in _RUNTIMES and not _installed(engine):
        raise ConfigError(f"engine {engine!r} is not installed. Run: pip install 'fxquant[{engine}]'.")
    return check_native() if engine == "native" else None


def _installed(runtime: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in (runtime, "onnx", "onnxscript"))


def available() -> tuple[str, ...]:
    """The engines that can run here, without "reference"."""
    onednn = ("onednn",) if supports("conv2d", "relu", False) or supports("linear", "relu", False) else ()
    native = ("native",) if has_native() else ()
    return (*onednn, *native, *(runtime for runtime in _RUNTIMES if _installed(runtime)))


def apply_engine(model: nn.Module, engine: str | Native) -> nn.Module:
    """Make a converted model (QDQ graphs) run on an engine; it may be changed in place."""
    check_engine(engine)
    run_passes(model, (("fill_grids", fill_grids),), "converted")
    if engine == "onednn":
        return run_passes(model, (("lower", lower),), "converted")
    if isinstance(engine, Native) or engine == "native":
        return run_native(model, engine if isinstance(engine, Native) else Native())
    if engine in _RUNTIMES:
        return _runtime(model, engine)
    if engine == "auto":
        if any(region._region.filled.waiting for _, region in regions(model)):
            raise StageError(
                "engine='auto' measures, and this model was converted without calibration. "
                "Name an engine, or calibrate first."
            )
        return fastest(on_engines(model, available()) or {"reference": model}, run_examples(model))
    return model


def _runtime(model: nn.Module, engine: str) -> nn.Module:
    from fxquant.engines.onnxruntime import OnnxRuntime
    from fxquant.engines.openvino import OpenVino

    kind = OnnxRuntime if engine == "onnxruntime" else OpenVino
    return run_regions(model, kind)


def fastest(candidates: Mapping[str, nn.Module], call: Callable[[nn.Module], Any]) -> nn.Module:
    """The one of several models, by their engines, that is called fastest."""
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    times = time_interleaved({name: functools.partial(call, candidate) for name, candidate in candidates.items()})
    return candidates[min(times, key=lambda name: times[name].median)]


def run_examples(model: nn.Module) -> Callable[[nn.Module], Any]:
    """What calls those of the regions of a model that the example inputs reached, in any form of that model."""
    examples = {}
    for path, region in outermost(model):
        with contextlib.suppress(ConfigError):
            examples[path] = example_of(region)
    return lambda made: [made.get_submodule(path)(**example) for path, example in examples.items()]


def on_engines(model: nn.Module, engines: tuple[str, ...]) -> dict[str, nn.Module]:
    """A copy of a converted model on each engine that takes it; a warning tells of one that fails."""
    found: dict[str, nn.Module] = {}
    for engine in engines:
        try:
            found[engine] = apply_engine(copy_model(model), engine)
        except FxQuantError as error:
            if engine == "onednn":
                raise
            warnings.warn(f"{engine} is left out. {error}", stacklevel=3)
    return found
