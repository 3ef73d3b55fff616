"""Learned ranges: give each activation the scale with which the outputs of its segment change least.

    for each quantizer of a segment, in turn:   scale = argmin over factors f of |segment(f scale) - float segment|^2

The inputs of a segment come from the segments before it, as they are quantized. Observers see one tensor by itself;
here, what its rounding and clipping does to what follows decides. Powers of two are tried next to each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fxquant.algorithms.grids import QuantizerGrids
from fxquant.algorithms.replay import Replay, Streams, Tensors, Values, chunks_of, loss_between
from fxquant.algorithms.rounded import rounded
from fxquant.algorithms.segments import Segment, segments
from fxquant.graph.algorithm import Algorithm, Watched
from fxquant.graph.context import Context
from fxquant.graph.notes import remark
from fxquant.graph.region import Region
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.passes.find_quantizer import quantizer_of
from fxquant.passes.look_again import watch_inputs
from fxquant.progress import following

_FACTORS = (0.55, 0.7, 0.8, 0.9, 1.1, 1.25)
_POWERS = (0.125, 0.25, 0.5, 2.0, 4.0)
_WORTH = 0.99  # of the loss: less of a gain leaves the scale as it was


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedRanges(Algorithm):
    """Choose the scales of static activations by what they do to the output of the ops around, on `rows` samples.

    Ranges that are known beforehand, that a user's observer finds, or that several segments share stay as they are.
    `progress` shows a bar, in a terminal.
    """

    rows: int = 32
    progress: bool = True

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        return watch_inputs(region)

    @torch.no_grad()
    def apply(self, region: Region, context: Context) -> None:
        parts, grids = segments(region, context), QuantizerGrids(region)
        if not grids.found:
            return
        chunks = chunks_of(region, parts, self.rows)[:1]
        if not chunks:
            return
        streams, tensors = Streams(region, chunks), rounded(region, context)
        for index, segment in enumerate(following(parts, "learning ranges", wanted=self.progress)):
            true = Replay(region).step(segment, streams.true[0])
            made = _choose(region, segment, grids, streams.made[0], true, tensors)
            streams.advance(parts[index + 1 :], [true], [made])
        grids.fix()


def _choose(
    region: Region, segment: Segment, grids: QuantizerGrids, values: Values, true: Values, tensors: Tensors
) -> Values:
    """Set the scales of a segment, and give what it makes with them."""
    runner = Replay(region, grids.quantize, tensors)
    made = runner.step(segment, values)
    least = float(loss_between(made, true))
    for quantizer in grids.inside(segment):
        start, best = grids.found[quantizer.name][0], 1.0
        before = least
        for factor in _POWERS if quantizer.spec.scale == "pow2" else _FACTORS:
            was = grids.found[quantizer.name]
            grids.found[quantizer.name] = start * factor, was[1]
            tried = runner.step(segment, values)
            loss = float(loss_between(tried, true))
            if loss < _WORTH * before and loss < least:
                least, best, made = loss, factor, tried
            grids.found[quantizer.name] = was
        if best != 1.0:
            grids.set(quantizer.name, start * best)
            _say(region, segment, quantizer, best, before, least)
    return made


def _say(region: Region, segment: Segment, quantizer: FakeQuant, factor: float, before: float, after: float) -> None:
    for node in segment.nodes:
        if quantizer_of(region, node) is quantizer:
            for user in node.users:
                remark(user, f"range of its input learned: x{factor:g}, loss {after / before:.2f} of what it was")
                return
