"""The grids of a decided graph's quantizers while algorithms look for better ones."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from fxquant.algorithms.segments import Segment
from fxquant.graph.region import Region
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.learned.straight_through import straight_through
from fxquant.numerics.ranges import tensor_range
from fxquant.passes.find_quantizer import quantizer_of, why_dropped


class QuantizerGrids:
    """Scale and zero point of each quantizer that has them, by its name; `set` ones are kept until `fix`."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.calls = Counter[str]()
        self.found: dict[str, tuple[Tensor, Tensor]] = {}
        self.changed: set[str] = set()
        for node in region.graph.nodes:
            quantizer = quantizer_of(region, node)
            if quantizer is not None:
                self.calls[quantizer.name] += 1
                if quantizer.observer is not None and why_dropped(quantizer) is None:
                    self.found[quantizer.name] = quantizer.compute_qparams()

    def set(self, name: str, scale: Tensor) -> None:
        self.found[name] = scale.detach().clone(), self.found[name][1]
        self.changed.add(name)

    def inside(self, segment: Segment) -> list[FakeQuant]:
        """Return the quantizers with a range that a segment alone calls, in the order of the graph."""
        own = Counter[str]()
        modules: dict[str, FakeQuant] = {}
        for node in segment.nodes:
            quantizer = quantizer_of(self.region, node)
            if quantizer is not None and quantizer.name in self.found:
                own[quantizer.name] += 1
                modules[quantizer.name] = quantizer
        fixed = ("fixed", "custom")  # known ranges, and those that the user's own code finds
        return [
            quantizer
            for name, quantizer in modules.items()
            if own[name] == self.calls[name] and quantizer.spec.observer not in fixed
        ]

    def quantize(self, quantizer: FakeQuant, x: Tensor) -> Tensor:
        """x on the grid of a quantizer; as it is where that has none."""
        if quantizer.name in self.found:
            return fake_quantize(x, *self.found[quantizer.name], quantizer.spec)
        if quantizer.spec.dynamic and x.numel():
            return fake_quantize(x, *choose_qparams(*tensor_range(x, quantizer.spec), quantizer.spec), quantizer.spec)
        return x

    def straight_through(self, quantizer: FakeQuant, x: Tensor, factor: Tensor | None = None) -> Tensor:
        """Return the same with gradients, for x and for a factor of the scale."""
        spec = quantizer.spec
        if quantizer.name in self.found:
            scale, zero_point = self.found[quantizer.name]
            step = scale if factor is None else scale * factor
            return straight_through(x, step, zero_point, spec, margin=0.5 if factor is None else 0.0)
        if spec.dynamic and x.numel():
            return straight_through(x, *choose_qparams(*tensor_range(x.detach(), spec), spec), spec)
        return x

    @torch.no_grad()
    def fix(self) -> None:
        """Freeze the quantizers whose scale was set."""
        for node in self.region.graph.nodes:
            quantizer = quantizer_of(self.region, node)
            if quantizer is not None and quantizer.name in self.changed:
                scale, zero_point = self.found[quantizer.name]
                quantizer.register_buffer("scale", scale)
                quantizer.register_buffer("zero_point", zero_point)
                quantizer.state = "frozen"
