"""One more factor for each group of channels, the same for all of its channels, where scales are powers of two.

    f = argmin  noise(f x) + noise(f W1) + noise(W2 / f)          noise: beside the power, on the best power of two

A range just above a power of two leaves half of its grid empty; what a factor moves out of one tensor's grid goes into
another's. Groups take turns, since a weight is behind one of them and in front of the next. Twice a factor is the
same grid again. In front of gates (gates.py), factors are such that whole numbers take them back.

A clip goes along with the factor, to a whole step of the grid: relu6 fills 96 of 127 steps, and may end at 127 / 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.algorithms.channel_groups import ChannelGroup
from fxquant.algorithms.gates import GATE_FACTORS, is_gate
from fxquant.algorithms.scale_group import divided, scale_group
from fxquant.config.spec import Spec
from fxquant.graph.moved_calls import move_call
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.observers.histogram import HistogramObserver
from fxquant.numerics.observers.search_mse import expected_error
from fxquant.numerics.positions.costs import scale_at
from fxquant.numerics.statistics import HISTOGRAM, Statistics
from fxquant.passes.candidates import choice_of
from fxquant.passes.hardware_form import note_rewrite

_FACTORS = tuple(2 ** (step / 6) for step in range(6))
_LEVELS = 127
_SPREAD = tuple((factor, int(factor > 4 / 3)) for factor in _FACTORS)  # with the steps behind the last: twice as wide
_ROUNDS = 2
_PLACES = 3  # positions that are tried, from that at which nothing is cut off
_WORTH = 0.95  # of the noise: less of a gain is not worth it


def fit_powers(region: Region, groups: Sequence[ChannelGroup], totals: dict[int, Tensor]) -> None:
    """Multiply groups once more, whose channels were multiplied with `totals` before, in place."""
    open_ = [group for group in groups if len(_ends(group)) < 2]
    seen = {id(group): _activations(region, group, _allowed(group, totals[id(group)])) for group in open_}
    factors = {id(group): 1.0 for group in open_}
    for _ in range(_ROUNDS):
        for group in open_:
            now = factors[id(group)]
            tried = _allowed(group, totals[id(group)])
            noise = [seen[id(group)].get(each, 0.0) + _weights(region, group, each / now) for each in tried]
            best = min(range(len(tried)), key=noise.__getitem__)
            if noise[best] < _WORTH * noise[tried.index(now)]:
                scale_group(region, group, torch.full((group.channels,), tried[best] / now))
                factors[id(group)] = tried[best]
    for group in open_:
        totals[id(group)] = totals[id(group)] * factors[id(group)]
        if factors[id(group)] != 1.0:
            _move_clips(group, factors[id(group)])


def _ends(group: ChannelGroup) -> set[float]:
    """Return where clips cut the channels of a group off."""
    return {*filter(math.isfinite, group.clips.values())}


def _move_clips(group: ChannelGroup, factor: float) -> None:
    """Multiply the ends of clips."""
    for node in [node for node, end in group.clips.items() if math.isfinite(end)]:
        before, group.clips[node] = group.clips[node], group.clips[node] * factor
        move_call(node, "hardtanh", 0.0, group.clips[node])
        note_rewrite(
            node, Rewrite(name="fit_powers", text=f"clip at {before:g} as one at {group.clips[node]:g}, exact")
        )


def _allowed(group: ChannelGroup, total: Tensor) -> tuple[float, ...]:
    ends = _ends(group)
    if ends and not any(map(is_gate, group.takers)):
        return _filling(ends.pop())
    if not any(map(is_gate, group.takers)):
        return _FACTORS
    span = float(total.max() / total.min())
    return tuple(factor for factor, widest in GATE_FACTORS.items() if span <= 1.01 * widest)


def _filling(end: float) -> tuple[float, ...]:
    """Return factors with which the end of a clip lies on whole steps of 8 bits: as it is, on the last, and between."""
    step = 2.0 ** math.ceil(math.log2(end / _LEVELS))
    whole = {round(factor * end / step / 2**half) * step * 2**half / end for factor, half in _SPREAD}
    return (1.0, *sorted({_LEVELS * step / end, *whole} - {1.0}))


def _activations(region: Region, group: ChannelGroup, factors: Sequence[float]) -> dict[float, float]:
    """Return the noise of the tensors of a group that are rounded, by factor."""
    path = preparation_of(region).statistics_path
    kept = region.get_submodule(path) if path else None
    total: dict[float, float] = {}
    for node in group.tensors:
        choice = choice_of(node)
        spec = choice.qconfig.output_spec if choice is not None and choice.qconfig is not None else None
        found = kept.of((node.name,), HISTOGRAM) if isinstance(kept, Statistics) else None
        if spec is None or spec.scale != "pow2" or not spec.symmetric or not found:
            continue
        observer = found[0]
        if isinstance(observer, HistogramObserver) and observer.seen:
            for factor, noise in _of_histogram(observer, spec, factors).items():
                total[factor] = total.get(factor, 0.0) + noise
    return total


def _of_histogram(observer: HistogramObserver, spec: Spec, factors: Sequence[float]) -> dict[float, float]:
    found = observer.histogram()
    edges, counts = found.edges, found.counts
    power = float((counts * (edges[1:].pow(3) - edges[:-1].pow(3)) / (edges[1:] - edges[:-1])).sum() / 3.0)
    widest = max(-found.low, found.high)
    if not power > 0.0 or not widest > 0.0:
        return {}
    ends = [
        spec.quant_max * 2.0 ** -(place + start) / factor
        for factor in factors
        for start in (math.floor(math.log2(spec.quant_max / (widest * factor))),)
        for place in range(_PLACES)
    ]
    pairs = torch.tensor([[-end, end] for end in ends], dtype=torch.float64)
    plain = spec.with_(scale="float", observer="minmax", range=None)
    errors = expected_error(edges, counts, pairs, plain).view(len(factors), _PLACES).amin(1) / power
    return dict(zip(factors, errors.tolist(), strict=True))


def _weights(region: Region, group: ChannelGroup, factor: float) -> float:
    """Return the noise of all weights before and behind a group, if it is multiplied once more."""
    every, total = torch.full((group.channels,), factor), 0.0
    for node in (*group.makers, *(taker for taker in group.takers if not is_gate(taker))):
        choice, weight = choice_of(node), region.get_submodule(str(node.target)).weight
        spec = choice.qconfig.weight if choice is not None and choice.qconfig is not None else None
        if isinstance(spec, Spec) and spec.scale == "pow2" and spec.symmetric and isinstance(weight, Tensor):
            values = divided(region, group, node, every) if node in group.takers else weight.detach() * factor
            total += _of_values(values.float(), spec)
    return total


def _of_values(values: Tensor, spec: Spec) -> float:
    """Return the noise of a weight with one scale; of one with several, that does not depend on a factor for all."""
    power, widest = float(values.square().sum()), float(values.abs().max())
    if spec.granularity != "per_tensor" or not power > 0.0:
        return 0.0
    start, zero = math.floor(math.log2(spec.quant_max / widest)), torch.zeros((), dtype=torch.int32)
    tried = [fake_quantize(values, scale_at(start + place), zero, spec) for place in range(_PLACES)]
    return min(float((made - values).square().sum()) for made in tried) / power
