"""Automatic precision: what `quantize` does where int8 alone is too far from float.

    converted, compared with float on a few batches          good enough: done; nearly: what is cheap, or clear
    the tensors that cause the error, from one pass          sources.py
    changes, cheapest first, each converted and compared     steps.py; what gives less than it should is taken back

One calibration serves: every try decides anew from the same statistics. The same data give the same result.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from fxquant.capture.run_untraced import copy_inputs
from fxquant.config.target import Target
from fxquant.engines.engine import Engine
from fxquant.engines.table import REFERENCE
from fxquant.errors import ConfigError, FxQuantError, StageError
from fxquant.export.reference import reference_of
from fxquant.flows.calibrate import is_empty
from fxquant.flows.decide import decide
from fxquant.flows.eaten import find_eaten, warn_eaten
from fxquant.graph.amendments import Amendments
from fxquant.graph.region import preparation_of, regions
from fxquant.precision.attribute import count_samples
from fxquant.precision.check import LEAST, Check, compare_outputs
from fxquant.precision.outputs import Known
from fxquant.precision.sources import SAMPLES, Source, find_sources
from fxquant.precision.steps import (
    CALLED,
    COMPILED,
    Prices,
    Step,
    better_ranges,
    int8_time,
    joined,
    more_precision,
    total,
)
from fxquant.precision.tell import shapes, tell
from fxquant.progress import count_batches

log = logging.getLogger("fxquant")

Precision = Literal["auto", "int8"]

GOOD = 27.0  # dB at the outputs, a cosine of 0.999: what changes aim at
FAILING = 10.0  # below that, an error is more than a third as large as the values, and a few changes may cost more
LOST = 5.0  # below that, hardly anything of the answer is left, and changes may cost more
_BATCHES, _SAMPLES = 4, 16  # that are compared, at most
_TRIED = 8  # samples that tries are compared on: the reference, by which they are made, takes several times as long
_ROUNDS = 3  # of lifting
_EXPLAINED = 0.1  # of the noise at the outputs: where tensors make less, weights that were chosen are looked at, too


@dataclass(frozen=True, kw_only=True, slots=True)
class _Limit:
    """What lifting may add to the time, as a share of the int8 model's, and what it has to gain for that, in dB.

    `goal` is where it stops, `most` how many tensors it may take. The gain is as predicted; `measured`, what is to come
    of it, else half of that and at most 3 dB.
    """

    slower: float
    gain: float
    goal: float = GOOD
    most: int | None = None
    measured: float | None = None


_CHEAP = _Limit(slower=0.1, gain=6.0)
_CLEAR = _Limit(slower=0.3, gain=10.0)  # a few tensors make nearly all of it
_NEARLY = _Limit(slower=0.3, gain=3.0)  # after a first change: what is measured to make it good
_FAILING = _Limit(slower=math.inf, gain=6.0, most=3)
_COLLAPSED = (_Limit(slower=0.3, gain=6.0), _Limit(slower=math.inf, gain=3.0, goal=FAILING + 3.0))
_RECOVERING = _Limit(slower=0.5, gain=1.0)  # after a collapse: on to where it is good


def check_precision(precision: str, budget: float | None) -> None:
    """Raise unless these are what `quantize` knows."""
    if precision not in ("auto", "int8"):
        raise ConfigError(f"precision={precision!r} is unknown. Known: 'auto', 'int8'.")
    if budget is not None and not 0 < budget <= 1:
        raise ConfigError(f"budget={budget!r}: expected a share of the float model's time, above 0 and at most 1.")


class Kept:
    """Passes data on, and keeps copies of the first batches."""

    def __init__(self, data: Iterable[object]) -> None:
        self._data = data
        self.batches: list[Any] = []
        self._samples = 0

    def __iter__(self) -> Iterator[object]:
        for batch in self._data:
            if len(self.batches) < _BATCHES and self._samples < _SAMPLES and not is_empty(batch):
                self.batches.append(copy_inputs(batch))
                self._samples += count_samples(batch)
            yield batch

    def __length_hint__(self) -> int:
        count = count_batches(self._data)
        return NotImplemented if count is None else count


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A converted model, what it was made of, and how to make others: `convert` takes a decided one and an engine."""

    prepared: nn.Module
    converted: nn.Module
    engine: Engine
    convert: Callable[[nn.Module, Engine], nn.Module]


def assured(
    float_model: nn.Module,
    made: Made,
    batches: Sequence[object],
    *,
    budget: float | None,
    may_change: bool,
    finer: bool,
) -> nn.Module:
    """Return the converted model, or a better one from the same calibration, where it is too far from the float model.

    Without `may_change`, what falls short is said. `finer` looks also where the model does well, and not yet very well:
    for ranges that cost no time, and for the few tensors without which it would do very well.
    """
    prepared, converted, engine, convert = made.prepared, made.converted, made.engine, made.convert
    if not batches or not any(True for _ in regions(converted)):
        return converted
    measure = functools.partial(_measure, float_model, batches=batches, known=Known())
    ran = _as_it_runs(converted, measure)  # which is faster than the graph that it is decided by
    if ran is not None and _is_good(ran):
        if ran.sqnr >= GOOD or not (finer and may_change):
            return converted
        finer_search = _Search(prepared, batches, engine, convert, measure, budget, passes=True)
        end = finer_search.run(ran)
        tell(ran, end, finer_search.lifted, finer_search.wanted, may_change)
        return finer_search.best or converted
    measure = functools.partial(measure, batches=_some(batches))
    try:
        found = measure(reference_of(converted, "quantize"))
    except (FxQuantError, RuntimeError, TypeError, ValueError) as error:
        warnings.warn(f"quantize could not compare its result with the float model: {error}", stacklevel=3)
        return converted
    if not found.compared:
        warnings.warn(f"quantize could not compare its result with the float model. {shapes(found)}", stacklevel=3)
        return converted
    if _is_good(found):
        return converted
    search = _Search(prepared, batches, engine, convert, measure, budget)
    end = search.run(found) if may_change else search.look(found)
    decided = decide(prepared, engine=engine, amendments=search.amendments)
    warn_eaten(find_eaten(prepared, decided), stacklevel=3)
    tell(found, end, search.lifted, search.wanted, may_change)
    return convert(decided, engine) if search.amendments else converted


def _some(batches: Sequence[object]) -> Sequence[object]:
    """Return the first batches, as many as it takes to compare a try."""
    count = 0
    for index, batch in enumerate(batches):
        count += count_samples(batch)
        if count >= _TRIED:
            return batches[: index + 1]
    return batches


def _as_it_runs(converted: nn.Module, measure: Callable[[nn.Module], Check]) -> Check | None:
    try:
        found = measure(converted)
    except (FxQuantError, RuntimeError, TypeError, ValueError):
        return None  # the graph will tell
    return found if found.compared else None


def _is_good(found: Check) -> bool:
    return found.sqnr >= LEAST and not _broken(found)


def _measure(float_model: nn.Module, quantized: nn.Module, *, batches: Sequence[object], known: Known) -> Check:
    outputs = compare_outputs(float_model, quantized, batches, known)
    return Check(outputs=outputs.rows(), least=LEAST, batches=len(batches))


def _broken(found: Check) -> bool:
    return any(row.broken for row in found.compared)


class _Search:
    """Changes that were measured to help, and what they are.

    With `passes` the model does well without any, on its engine, which is what measures then.
    """

    def __init__(
        self,
        prepared: nn.Module,
        batches: Sequence[object],
        engine: Engine,
        convert: Callable[[nn.Module, Engine], nn.Module],
        measure: Callable[[nn.Module], Check],
        budget: float | None,
        *,
        passes: bool = False,
    ) -> None:
        self._prepared, self._batches, self._engine = prepared, batches, engine
        self._convert, self._measure, self._budget, self._passes = convert, measure, budget, passes
        self.amendments = Amendments()
        self.best: nn.Module | None = None  # the last that was kept
        self.lifted: list[str] = []
        self.wanted: Step | None = None  # what would have helped, and was not done
        self._spent = 0.0  # by all that was lifted
        self._cheap = 0.0  # by what cost little of it
        self._start = math.inf

    def run(self, found: Check) -> Check:
        """Find them, from how the model does without any; gives how it does with them."""
        self._start, sources = found.sqnr, self._sources(found)
        ranges = better_ranges(sources)
        if ranges.gain >= 1.0 and (better := self._try(ranges, found, 0.5)) is not None:
            found, sources = better, []
        for _ in range(_ROUNDS):
            if found.sqnr >= GOOD:
                break
            sources = sources or self._sources(found)
            better = self._round(sources, found)
            unexplained = total(sources) < _EXPLAINED * 10 ** (-found.sqnr / 10)
            if better is None and not self._passes and (unexplained or self.wanted is None):
                better = self._round(self._sources(found, chosen=True), found)
            if better is None:
                break
            found, sources = better, []
        return found

    def look(self, found: Check) -> Check:
        """Find what causes it, and change nothing."""
        sources = self._sources(found) if found.sqnr < LEAST else []
        self.wanted = self._lift(sources, found, replace(_CLEAR, slower=math.inf), dynamic=False) if sources else None
        return found

    def _round(self, sources: Sequence[Source], found: Check) -> Check | None:
        """Lift what may be lifted now, if that gains enough; tells how the model does then."""
        if not sources:
            return None
        tried = [(limit, self._lift(sources, found, limit)) for limit in self._limits(sources, found)]
        limit, first = next((each for each in tried if each[1].gain >= each[0].gain), tried[-1])
        other = self._lift(sources, found, limit, dynamic=False)  # the range of a batch may be as bad as that of all
        steps = [step for step in (first, other) if step.gain >= limit.gain]
        for step in steps if other.names != first.names else steps[:1]:
            least = min(limit.gain / 2, 3.0) if limit.measured is None else limit.measured
            better = self._try(step, found, least)
            if better is not None:
                self._spent += step.slower
                self._cheap += step.slower if step.slower <= _CLEAR.slower else 0.0
                self.lifted += [name for name in step.names if name not in self.lifted]
                return better
        wanted = self._lift(sources, found, replace(limit, slower=math.inf), dynamic=False)
        self.wanted = None if any(wanted.names == step.names for step in steps) else wanted  # or it was tried in vain
        return None

    def _sources(self, found: Check, *, chosen: bool = False) -> list[Source]:
        """For the outputs that are not good yet; with `chosen`, also weights that an algorithm chose."""
        return find_sources(
            self._prepared,
            self._batches[:1] if count_samples(self._batches[0]) >= SAMPLES else self._batches,
            engine=self._engine,
            amendments=self.amendments,
            outputs=[row.name for row in found.compared if self._passes or row.sqnr < GOOD],
            wide=16 in self._target.activations.bits,
            chosen=chosen,
        )

    @property
    def _target(self) -> Target:
        asked = (preparation_of(region).request for _, region in regions(self._prepared))
        named = (request.target for request in asked if request is not None and request.target is not None)
        return next(named, self._engine.target())

    @property
    def _prices(self) -> Prices:
        """Of the engine. With a budget, a share of the float model's time, calls do not count."""
        prices = COMPILED if self._engine.name == "native" else CALLED
        return prices if self._budget is None else replace(prices, call=0.0)

    def _lift(self, sources: Sequence[Source], found: Check, limit: _Limit, *, dynamic: bool = True) -> Step:
        goal = 10 ** ((found.sqnr - max(limit.goal, found.sqnr + limit.gain)) / 10)
        return more_precision(
            sources,
            goal=goal,
            slower=limit.slower,
            most=limit.most,
            dynamic=dynamic and self._engine.name in ("onednn", "reference"),
            prices=self._prices,
        )

    def _limits(self, sources: Sequence[Source], found: Check) -> list[_Limit]:
        """Return what may be spent now, the least first."""
        bought = None if self._budget is None else self._budget / int8_time(sources, self._prices) - 1
        if self._passes:
            near = [replace(each, gain=max(each.gain, GOOD - found.sqnr)) for each in (_CHEAP, _CLEAR)]
            return near if bought is None else [replace(near[0], slower=bought)]
        if bought is not None:
            return [_Limit(slower=bought, gain=1.0)]
        recovering = bool(self.amendments) and self._start < FAILING
        if found.sqnr < LOST:
            limits = list(_COLLAPSED)
        elif recovering:
            limits = [_RECOVERING]
        else:
            nearly = [replace(_NEARLY, measured=max(GOOD - found.sqnr, _NEARLY.gain))] if self.amendments else []
            limits = [_CHEAP, _CLEAR, *nearly, *([_FAILING] if found.sqnr < FAILING else [])]
        # a first step that was dear leaves room for those that cost next to nothing
        room = max(_CHEAP.slower - self._cheap, 0.0)
        return [replace(limit, slower=max(limit.slower - self._spent, room)) for limit in limits]

    def _try(self, step: Step, found: Check, least: float) -> Check | None:
        """Tell how the model does with a step, which is kept if it gains as much as asked."""
        said = f"; {found.sqnr:.1f} dB"
        both = joined(self.amendments, step.amendments)
        try:
            made = self._made(both)
            better = self._measure(made)
        except StageError as error:  # a tensor that only now is to be int8 was not watched
            log.info("automatic precision leaves out %s: %s", ", ".join(step.names), error)
            return None
        if better.sqnr - found.sqnr < least or (_broken(better) and not _broken(found)):
            return None
        self.amendments = joined(self.amendments, step.amendments.saying(f"{said} -> {better.sqnr:.1f} dB"))
        self.best = made
        return better

    def _made(self, amendments: Amendments) -> nn.Module:
        decided = decide(self._prepared, engine=self._engine, amendments=amendments)
        if self._passes:
            return self._convert(decided, self._engine)
        return reference_of(self._convert(decided, REFERENCE), "quantize")
