"""What to change where int8 falls short, from the noise of its tensors: cheapest first.

    ranges      another way to find the range of a tensor: costs nothing
    int16       16 bits for a tensor, where the target has them
    dynamic     the range of a linear's input, found at run time
    lift        all readers of a tensor take it in float: weights stay int8 ("weight_only"), other ops are float

The error counts as caused by some tensors if few of them, read by little of the work, make most of it. An error that
all tensors make together is left as it is: what is left in float for it would cost more than it gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fxquant.config.qconfig import Lift
from fxquant.graph.amendments import Amendments, Lifted, Place, Regridded
from fxquant.precision.attribute import NOW
from fxquant.precision.sources import AT_RUN_TIME, MATTERS, RANGES, WIDE, Source
from fxquant.tuning.space import TIME

_BETTER = 0.7  # of its noise, which another range leaves at most
_ENOUGH = 0.1  # of its noise, which more precision leaves at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """The time of one multiply-add by status, of float's; then, in multiply-adds of float, of the call of an op, and of
    what each value of an op adds that leaves int8: other layouts and dtypes before and behind it.
    """

    times: Mapping[str, float]
    call: float = 0.0
    leaves: float = 0.0


CALLED = Prices(times=TIME, call=2e5)  # op by op, as oneDNN and the reference
# Machine code has no calls to speak of: int8 is six times as fast as float. YOLOX-Nano: 5.1 ms, and 10.5 with four
# small convolutions outside of it.
COMPILED = Prices(times={**TIME, "int8": 0.16, "dynamic": 0.35}, leaves=80.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Changes of one kind, the noise that all tensors are predicted to make after them, and the time that they add.

    Noise is a share of the outputs' power, `slower` a share of the time that the ops now take which it looked at.
    """

    amendments: Amendments
    before: float
    after: float
    slower: float = 0.0
    names: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """In dB, as predicted."""
        return 10 * math.log10(self.before / max(self.after, 1e-12 * self.before)) if self.before else 0.0


def total(sources: Iterable[Source]) -> float:
    """Return the noise that all make together."""
    return sum(source.noise[NOW] for source in sources)


def better_ranges(sources: Sequence[Source]) -> Step:
    """Return the ranges that make less noise at the outputs."""
    before = after = total(sources)
    found: dict[Place, Regridded] = {}
    for source in sources:
        now = source.noise[NOW]
        name = min(RANGES, key=lambda each: source.noise.get(each, math.inf))
        best = source.noise.get(name, math.inf)
        if now > MATTERS * before and best < _BETTER * now:
            why = f"range by {name}: {_db(now, best)} dB less noise from {source.place[1]} at the outputs"
            found[source.place] = Regridded(tuple(RANGES[name].items()), why)
            after += best - now
    return Step(amendments=Amendments(grids=found), before=before, after=after, names=_places(found))


def more_precision(
    sources: Sequence[Source], *, goal: float, slower: float, dynamic: bool, prices: Prices, most: int | None = None
) -> Step:
    """Sites lifted, those first whose noise is the greatest for the time that it costs, until `goal` of it is left.

    They may add `slower` to the time, as a share of the int8 model's; `most` takes only so many, the worst.
    """
    before, whole = total(sources), _time(sources, prices) + _calls(sources, prices)
    worst = sorted(sources, key=lambda source: -source.noise[NOW])[:most]
    chosen = _choose(
        worst, before, goal * before, lambda some, dynamic: _added(some, whole, dynamic, prices), slower, dynamic
    )
    left = before - sum(_taken(source, dynamic) for source in chosen)
    grids: dict[Place, Regridded] = {}
    lifts: dict[Place, Lifted] = {}
    names: dict[Place, str] = {}
    for source in chosen:
        share = f"{source.noise[NOW] / before:.0%} of the noise at the outputs came from {_what(source)}"
        if _is_wide(source):
            grids[source.place] = Regridded((("bits", 16), ("observer", "minmax")), f"16 bits: {share}")
            names[source.place] = f"{source.place[1]} (int16)"
            continue
        for reader in source.readers:
            mode = _modes(source, dynamic)[reader.place]
            if reader.place not in lifts or mode == "float":
                lifts[reader.place] = Lifted(mode, f"lifted to {mode}: {share}")
                names[reader.place] = f"{reader.path or reader.kind} ({mode})"
    return Step(
        amendments=Amendments(lifts=lifts, grids=grids),
        before=before,
        after=max(left, 0.0),
        slower=_added(chosen, whole, dynamic, prices),
        names=tuple(dict.fromkeys(names.values())),
    )


def _choose(
    sources: Sequence[Source],
    left: float,
    goal: float,
    added: Callable[[Sequence[Source], bool], float],
    slower: float,
    dynamic: bool,
) -> list[Source]:
    """Return the sources to lift: by worth until little enough is left, then without those not needed for that.

    `added` tells the time that lifting some adds.
    """
    chosen: list[Source] = []
    for source in _by_worth(sources, left, added):
        if left <= goal:
            break
        if added([*chosen, source], dynamic) <= slower:
            chosen.append(source)
            left -= _taken(source, dynamic)
    for source in sorted(chosen, key=lambda source: source.noise[NOW]):
        if left + _taken(source, dynamic) <= goal:
            chosen.remove(source)
            left += _taken(source, dynamic)
    return chosen


def _taken(source: Source, dynamic: bool) -> float:
    """Return the noise that lifting a source takes away."""
    if _is_wide(source):
        return source.noise[NOW] - source.noise[WIDE]
    return source.noise[NOW] - (source.noise[AT_RUN_TIME] if "dynamic" in _modes(source, dynamic).values() else 0.0)


def _is_wide(source: Source) -> bool:
    """Tell whether 16 bits are there for it, and enough."""
    return WIDE in source.noise and source.noise[WIDE] < _ENOUGH * source.noise[NOW]


def int8_time(sources: Sequence[Source], prices: Prices) -> float:
    """Return what the quantized ops take, as a share of the float model's."""
    whole = sum(_work(sources).values())
    return _time(sources, prices) / whole if whole else 1.0


def joined(first: Amendments, second: Amendments) -> Amendments:
    """Both; the second where they are about the same."""
    return Amendments(lifts={**first.lifts, **second.lifts}, grids={**first.grids, **second.grids})


def _by_worth(
    sources: Sequence[Source], noise: float, added: Callable[[Sequence[Source], bool], float]
) -> list[Source]:
    """Sort the sources that matter by their noise for the time that lifting costs."""
    matter = [source for source in sources if source.noise[NOW] > MATTERS * noise and source.readers]

    def worth(source: Source) -> float:
        return source.noise[NOW] / noise / (added([source], False) + 1e-3)

    return sorted(matter, key=worth, reverse=True)


def _modes(source: Source, dynamic: bool) -> dict[Place, Lift]:
    """Tell how the readers of a source are lifted, so that none of them rounds it any more."""
    now = source.noise[NOW]
    if dynamic and not source.is_weight and source.noise.get(AT_RUN_TIME, math.inf) < _ENOUGH * now:
        return {reader.place: "dynamic" for reader in source.readers}
    return {
        reader.place: "weight_only" if reader.weighted and not source.is_weight else "float"
        for reader in source.readers
    }


def _added(chosen: Sequence[Source], whole: float, dynamic: bool, prices: Prices) -> float:
    """Return the time that lifting these sources adds, as a share of the int8 model's."""
    added: dict[Place, float] = {}
    for source in chosen:
        modes = {} if _is_wide(source) else _modes(source, dynamic)
        calls = max(source.calls, 1.0) if not source.is_weight else 1.0
        for reader in source.readers if modes else ():
            dearer = max(prices.times[modes[reader.place]] - prices.times[reader.status], 0.0)
            leaves = dearer > 0 and not reader.dynamic  # linears take floats where they are
            more = calls * (reader.work * dearer + (prices.leaves * reader.values if leaves else 0.0))
            added[reader.place] = max(added.get(reader.place, 0.0), more)
    return sum(added.values()) / whole if whole else 0.0


def _time(sources: Sequence[Source], prices: Prices) -> float:
    """Return what the quantized ops take now."""
    status = {reader.place: reader.status for source in sources for reader in source.readers}
    return sum(work * prices.times[status[place]] for place, work in _work(sources).items())


def _calls(sources: Sequence[Source], prices: Prices) -> float:
    """Return what the calls of the quantized ops take besides their work: most of the time of a small model."""
    found: dict[Place, float] = {}
    for source in sources:
        for reader in source.readers:
            found[reader.place] = max(found.get(reader.place, 1.0), 1.0 if source.is_weight else source.calls)
    return prices.call * sum(found.values())


def _work(sources: Sequence[Source]) -> dict[Place, float]:
    """Return the multiply-adds of each op, in all its calls."""
    found: dict[Place, float] = {}
    for source in sources:
        calls = max(source.calls, 1.0) if not source.is_weight else 1.0
        for reader in source.readers:
            found[reader.place] = max(found.get(reader.place, 0.0), reader.work * calls)
    return found


def _what(source: Source) -> str:
    return f"its {'weight' if source.is_weight else 'input'} ({source.spec})"


def _db(before: float, after: float) -> str:
    return f"{10 * math.log10(before / max(after, 1e-12 * before)):.1f}"


def _places(found: Mapping[Place, object]) -> tuple[str, ...]:
    return tuple(name for _, name in found)
