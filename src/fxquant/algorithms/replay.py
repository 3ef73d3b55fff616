"""Run a decided graph again, segment by segment, on inputs that calibration kept: in float and as it is quantized.

The values between two segments are kept for all chunks of inputs, twice: as float makes them, and as the segments that
are done make them. At most `MEMORY` bytes of them: where inputs are large, fewer chunks are used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.func import functional_call
from torch.fx.node import Argument, Target
from torch.utils._pytree import tree_leaves, tree_map

from fxquant.algorithms.segments import Segment
from fxquant.graph.interpret import PlainInterpreter
from fxquant.graph.region import Region
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.passes.look_again import kept_inputs

MEMORY = 1 << 29

Values = dict[fx.Node, Any]
Chunk: TypeAlias = list[Any]  # what the placeholders of a graph are given in one call
Quantize = Callable[[FakeQuant, Tensor], Tensor]
Tensors = Mapping[str, Mapping[str, Tensor]]  # weights and biases by the path of their module


class Replay(PlainInterpreter):
    """Runs segments, or all at once, with quantizers done by a function, and some weights replaced."""

    def __init__(
        self, region: Region, quantize: Quantize | None = None, tensors: Tensors | None = None, *, whole: bool = False
    ) -> None:
        super().__init__(region, garbage_collect_values=whole)
        self.quantize, self.tensors = quantize, tensors or {}
        self.call = 0  # which of several calls is run: each draws numbers of its own

    def run_node(self, n: fx.Node) -> object:
        # what a node draws in a call is the same in float and rounded: else noise would count as error
        torch.default_generator.manual_seed(zlib.crc32(f"{n.name} {self.call}".encode()))
        return super().run_node(n)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> object:
        module = self.fetch_attr(str(target))
        if isinstance(module, FakeQuant):
            x = args[0]
            if self.quantize is not None and isinstance(x, Tensor) and x.is_floating_point():
                return self.quantize(module, x)
            return x
        given = self.tensors.get(str(target))
        if given is not None:
            return functional_call(module, dict(given), args, kwargs)
        return super().call_module(target, args, kwargs)

    def step(self, segment: Segment, values: Values, call: int = 0) -> Values:
        """Return what a segment gives for the values that it takes in a call."""
        self.call = call
        self.env = {node: values[node] for node in segment.takes}
        for node in segment.nodes:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in self.env:
                    self.env[source] = self.run_node(source)
            self.env[node] = self.run_node(node)
        return {node: self.env[node] for node in segment.gives}


class Streams:
    """The values at one place of the graph, for all chunks: `true` as in float, `made` by what is quantized so far."""

    def __init__(self, region: Region, chunks: list[Chunk]) -> None:
        placeholders = [node for node in region.graph.nodes if node.op == "placeholder"]
        self.true: list[Values] = [dict(zip(placeholders, chunk, strict=True)) for chunk in chunks]
        self.made: list[Values] = [dict(values) for values in self.true]

    def advance(self, later: Iterable[Segment], true: list[Values], made: list[Values]) -> None:
        """Go past a segment that gave these; what no later one takes is dropped."""
        needed = {node for segment in later for node in segment.takes}
        for streams, new in ((self.true, true), (self.made, made)):
            for values, given in zip(streams, new, strict=True):
                values.update(given)
                for node in [node for node in values if node not in needed]:
                    del values[node]


def loss_between(made: Values, true: Values) -> Tensor:
    """Return the squared distance of float tensors, beside the size of the true ones, summed over these."""
    total = torch.zeros(())
    for node, wanted in true.items():
        if isinstance(wanted, Tensor) and wanted.is_floating_point() and wanted.numel():
            size = wanted.detach().float().square().sum().clamp_min(1e-12)
            total = total.to(size) + (made[node].float() - wanted.float()).square().sum() / size
    return total


@torch.no_grad()
def chunks_of(region: Region, parts: list[Segment], rows: int) -> list[Chunk]:
    """Return the inputs that calibration kept, `rows` samples at a time where the graph takes that, else by calls."""
    calls: list[Chunk] = [tree_map(_own, call) for call in kept_inputs(region)]
    if not calls:
        return []
    chunks = _rechunked(region, parts, calls, rows)
    used = _memory(region, parts, chunks[0])
    return chunks[: max(1, MEMORY // max(used, 1))]


def _own(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value  # one from inference mode knows no gradients


def _rechunked(region: Region, parts: list[Segment], calls: list[Chunk], rows: int) -> list[Chunk]:
    tensors = [index for index, value in enumerate(calls[0]) if isinstance(value, Tensor)]
    if len(tensors) != sum(isinstance(value, Tensor) for value in tree_leaves(calls[0])):
        return calls  # some are inside of containers
    shapes = {tuple(tuple(call[index].shape[1:]) for index in tensors) for call in calls}
    sizes = {call[index].shape[0] if call[index].dim() else 0 for call in calls[:1] for index in tensors}
    if len(shapes) != 1 or len(sizes) != 1 or not _splits(region, parts, calls[0], tensors):
        return calls
    order = torch.randperm(sum(len(call[tensors[0]]) for call in calls), generator=torch.Generator().manual_seed(0))
    stacked = {index: torch.cat([call[index] for call in calls])[order] for index in tensors}
    whole = len(order) // rows * rows if len(order) >= rows else len(order)
    return [
        [stacked[index][at : at + rows] if index in stacked else value for index, value in enumerate(calls[0])]
        for at in range(0, whole, rows)
    ]


def _splits(region: Region, parts: list[Segment], call: Chunk, tensors: list[int]) -> bool:
    """Tell whether the samples of a call are independent along its first axis, in any number."""
    try:
        whole = _outputs(region, parts, call)
        first = _outputs(region, parts, [v[:1] if i in tensors else v for i, v in enumerate(call)])
        double = _outputs(region, parts, [torch.cat((v, v)) if i in tensors else v for i, v in enumerate(call)])
    except Exception:  # sizes that are part of the graph
        return False
    size = len(call[tensors[0]])
    return all(
        len(a) == 1 and len(b) == size and len(c) == 2 * size and _near(b[:1], a) and _near(b, c[size:])
        for a, b, c in zip(first, whole, double, strict=True)
    )


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-4)


def _outputs(region: Region, parts: list[Segment], call: Chunk) -> list[Tensor]:
    streams = Streams(region, [call])
    runner, found = Replay(region), []
    for index, segment in enumerate(parts):
        given = runner.step(segment, streams.true[0])
        found += [
            value
            for node, value in given.items()
            if isinstance(value, Tensor) and value.dim() and any(user.op == "output" for user in node.users)
        ]
        streams.advance(parts[index + 1 :], [given], [{}])
    return found


def _memory(region: Region, parts: list[Segment], chunk: Chunk) -> int:
    """Return the most bytes that are kept of one chunk between segments."""
    streams, runner, most = Streams(region, [chunk]), Replay(region), 0
    for index, segment in enumerate(parts):
        given = runner.step(segment, streams.true[0])
        most = max(most, 2 * _bytes(streams.true[0]) + 2 * _bytes(given))
        streams.advance(parts[index + 1 :], [given], [{}])
    return most


def _bytes(values: Values) -> int:
    return sum(v.numel() * v.element_size() for v in values.values() if isinstance(v, Tensor))
