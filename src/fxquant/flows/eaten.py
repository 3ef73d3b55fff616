"""Ranges that eat their signal, found from what calibration saw: no model is run for it.

eaten     most of the values that are not zero are less than half a step, and become zero
squeezed  tensors on one grid, at a concatenation mostly, of which one has a range ten times that of another
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from fxquant.graph.region import Region, preparation_of, regions
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.histogram import HistogramObserver
from fxquant.numerics.statistics import EXTREMES, Statistics
from fxquant.passes.watch import calibrated_quantizers

EATEN = 0.8  # a share of values that are not zero
APART = 10.0  # times that one range is wider than another
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Eaten:
    """A tensor, by its name in the graph, and what its grid does to it."""

    tensor: str
    what: str

    def __str__(self) -> str:
        return f"{self.tensor}: {self.what}"


def find_eaten(prepared: nn.Module, decided: nn.Module) -> list[Eaten]:
    """Find them in a calibrated model, and the same decided for a target."""
    kept = dict(regions(prepared))
    return [each for path, region in regions(decided) for each in _in_region(kept[path], region)]


def warn_eaten(found: Sequence[Eaten], stacklevel: int) -> None:
    """Tell the user, in one warning."""
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        names = "; ".join(map(str, found[:_SHOWN])) + more
        warnings.warn(
            f"ranges that eat their signal: {names}. Scale these tensors otherwise, or leave the ops that read them in "
            "float (docs/accuracy.md).",
            stacklevel=stacklevel + 1,
        )


def _in_region(prepared: Region, decided: Region) -> Iterator[Eaten]:
    path = preparation_of(prepared).statistics_path
    if not path:
        return
    kept = prepared.get_submodule(path)
    assert isinstance(kept, Statistics)
    for quantizer, tensors in calibrated_quantizers(decided):
        share = _share(quantizer)
        if share > EATEN:
            yield Eaten(tensors[0], f"{share:.0%} of its values that are not zero become zero ({quantizer.spec})")
        yield from _squeezed(kept, tensors)


def _share(quantizer: FakeQuant) -> float:
    """Of the values that are not zero, those that are rounded to it."""
    observer = quantizer.observer
    if not isinstance(observer, HistogramObserver) or not observer.seen or quantizer.spec.granularity != "per_tensor":
        return 0.0
    histogram = observer.histogram()
    middle = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    whole = float(histogram.counts.sum())

    def below(step: float) -> float:
        return float(histogram.counts[middle.abs() < step / 2].sum()) / whole if whole else 0.0

    levels = quantizer.spec.quant_max - quantizer.spec.quant_min
    if below((histogram.high - histogram.low) / levels) <= EATEN:  # the widest step: that of the extremes
        return 0.0
    return below(float(quantizer.compute_qparams()[0]))


def _squeezed(kept: Statistics, tensors: tuple[str, ...]) -> Iterator[Eaten]:
    widths = {}
    for tensor in tensors if len(tensors) > 1 else ():
        seen = kept.of((tensor,), EXTREMES)
        if seen and seen[0].seen:
            widths[tensor] = max(-float(seen[0].low.min()), float(seen[0].high.max()))
    widths = {tensor: width for tensor, width in widths.items() if width > 0}
    least, most = (min(widths, key=widths.__getitem__), max(widths, key=widths.__getitem__)) if widths else ("", "")
    if widths and widths[most] >= APART * widths[least]:
        yield Eaten(least, f"on one grid with {most}, whose range is {widths[most] / widths[least]:.0f} times as wide")
