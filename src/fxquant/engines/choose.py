"""Engines by name, and the fastest of them by measuring."""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn

from fxquant.core.graph import Region, regions
from fxquant.core.nodes import TensorInfo
from fxquant.core.verify import run_passes
from fxquant.engines.lower import lower
from fxquant.engines.support import supports
from fxquant.engines.timing import Timing, time_interleaved
from fxquant.errors import ConfigError, FxQuantError

Engine = Literal["onednn", "reference", "onnxruntime", "openvino", "auto"]
_RUNTIMES = ("onnxruntime", "openvino")


def check_engine(engine: str) -> None:
    """Raise unless the name is one of an engine that is there."""
    if engine not in get_args(Engine):
        raise ConfigError(f"engine {engine!r} is unknown. Known: {', '.join(get_args(Engine))}.")
    if engine in _RUNTIMES and not _installed(engine):
        raise ConfigError(f"engine {engine!r} is not installed. Run: pip install 'fxquant[{engine}]'.")


def _installed(runtime: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in (runtime, "onnx", "onnxscript"))


def available() -> tuple[str, ...]:
    """The engines that can run here, without "reference"."""
    native = ("onednn",) if supports("conv2d", "relu", False) or supports("linear", "relu", False) else ()
    return (*native, *(runtime for runtime in _RUNTIMES if _installed(runtime)))


def apply_engine(model: nn.Module, engine: str) -> nn.Module:
    """Make a converted model (QDQ graphs) run on an engine; it may be changed in place."""
    check_engine(engine)
    if engine == "onednn":
        return run_passes(model, (("lower", lower),), "converted")
    if engine in _RUNTIMES:
        return _runtime(model, engine)
    if engine == "auto":
        candidates = on_engines(model, available()) or {"reference": model}
        return fastest(candidates, (), example_of(model) if len(candidates) > 1 else {})[0]
    return model


def _runtime(model: nn.Module, engine: str) -> nn.Module:
    if not isinstance(model, Region):
        raise ConfigError(f"engine {engine!r} runs a model that is one graph; this one has several regions.")
    if engine == "onnxruntime":
        from fxquant.engines.onnxruntime import OnnxRuntimeModule

        return OnnxRuntimeModule(model, (), example_kwargs=example_of(model))
    from fxquant.engines.openvino import OpenVinoModule

    return OpenVinoModule(model, (), example_kwargs=example_of(model))


def fastest(
    candidates: Mapping[str, nn.Module], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Timing]]:
    """The one of several models, by their engines, that is fastest on these inputs, and what each took."""
    if len(candidates) == 1:
        return next(iter(candidates.values())), {}
    calls = {name: functools.partial(candidate, *args, **kwargs) for name, candidate in candidates.items()}
    times = time_interleaved(calls)
    return candidates[min(times, key=lambda name: times[name].median)], times


def on_engines(model: nn.Module, engines: tuple[str, ...]) -> dict[str, nn.Module]:
    """A copy of a converted model on each engine that takes it."""
    found: dict[str, nn.Module] = {}
    for engine in engines:
        try:
            found[engine] = apply_engine(copy.deepcopy(model), engine)
        except FxQuantError:
            if engine == "onednn":
                raise
    return found


def example_of(model: nn.Module) -> dict[str, Any]:
    """Zeros in the shapes and dtypes of the example inputs, by the names of forward's parameters."""
    region = next((region for path, region in regions(model) if not path), None)
    if region is None:
        raise ConfigError("the model is not one graph, so its example inputs are not known. Give them.")
    nodes = (node for node in region.graph.nodes if node.op == "placeholder")
    return {str(node.target): made for node in nodes if (made := _zeros(node.meta.get("tensor"))) is not None}


def _zeros(info: Any) -> Any:
    if isinstance(info, TensorInfo):
        return torch.zeros(info.shape, dtype=info.dtype)
    if isinstance(info, tuple):
        return tuple(_zeros(item) for item in info)
    return None
