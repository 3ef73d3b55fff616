"""Put a converted model on an engine, or on the fastest of them, by measuring."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping

from torch import nn

from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.engines.engine import Engine
from fxquant.engines.example import example_of
from fxquant.engines.native.settings import Native
from fxquant.engines.runtimes.regions import outermost
from fxquant.engines.table import as_engine, available_engines
from fxquant.engines.timing import time_interleaved
from fxquant.errors import ConfigError, FxQuantError, StageError
from fxquant.graph.context import Context
from fxquant.graph.counted import counting
from fxquant.graph.own import copy_model
from fxquant.graph.region import lowering_of, regions
from fxquant.graph.run_passes import run_passes
from fxquant.passes.fill_grids import fill_grids

AUTO = "auto"


def check_engine(engine: Engine | Native | str | None) -> None:
    """Raise unless this is an engine that can run here."""
    if engine == AUTO:
        return
    found = as_engine(engine)
    if not found.available():
        raise ConfigError(f"engine {found.name!r} is not available here. {found.hint}".rstrip())


def apply_engine(model: nn.Module, engine: Engine | Native | str | None) -> nn.Module:
    """Make a converted model (QDQ graphs) run on an engine; it may be changed in place."""
    check_engine(engine)
    with counting(model):
        run_passes(model, (fill_grids,), Context())
        if engine != AUTO:
            return as_engine(engine).apply(model)
        if any(lowering_of(region).waiting for _, region in regions(model)):
            raise StageError(
                "engine='auto' measures, and this model was converted without calibration. "
                "Name an engine, or calibrate first."
            )
        return fastest(on_engines(model, available_engines()), run_examples(model))


def fastest(candidates: Mapping[str, nn.Module], call: Callable[[nn.Module], object]) -> nn.Module:
    """Return the one of several models, by their engines, that is called fastest."""
    if not candidates:
        raise FxQuantError("no engine on this machine takes the model. The warnings say why.")
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    with left_as_it_was(*candidates.values()):  # these are no calls that a model should remember
        times = time_interleaved({name: functools.partial(call, candidate) for name, candidate in candidates.items()})
    return candidates[min(times, key=lambda name: times[name].median)]


def run_examples(model: nn.Module) -> Callable[[nn.Module], object]:
    """Return what calls those of the regions of a model that the example inputs reached, in any form of that model."""
    examples = {}
    for path, region in outermost(model):
        with contextlib.suppress(ConfigError):
            examples[path] = example_of(region)
    return lambda made: [made.get_submodule(path)(**example) for path, example in examples.items()]


def on_engines(model: nn.Module, engines: Iterable[Engine]) -> dict[str, nn.Module]:
    """Return a copy of a converted model on each engine that takes it; a warning tells of one that fails."""
    found: dict[str, nn.Module] = {}
    for engine in engines:
        try:
            found[engine.name] = apply_engine(copy_model(model), engine)
        except FxQuantError as error:
            warnings.warn(f"{engine.name} is left out. {error}", stacklevel=3)
    return found
