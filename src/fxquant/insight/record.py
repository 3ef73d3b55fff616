"""One batch through both models: what the float one has, kept until the quantized one comes by the same tensor.

Beside each op of the quantized graph the same op is run on the float model's tensors: its own error, which it would
have if all before it were exact. A tensor counts as its readers get it: after rounding, where all of them read that.
"""

from __future__ import annotations

import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from fxquant.graph import torch_compat
from fxquant.graph.interpret import PlainInterpreter, interpret
from fxquant.graph.lowering import run_instead, run_own_graph
from fxquant.graph.nodes import reads_size
from fxquant.graph.region import Region, regions
from fxquant.insight.measure import Errors, Ranges, Rounding
from fxquant.insight.twin import Pair, Place
from fxquant.ops.table import OPS


@dataclass(slots=True)
class Measured:
    """What is known of one tensor. `own` are the errors that the op makes by itself."""

    errors: Errors = field(default_factory=Errors)
    own: Errors = field(default_factory=Errors)
    ranges: Ranges = field(default_factory=Ranges)
    rounding: Rounding = field(default_factory=Rounding)


class Record:
    """The float tensors of the batch that is under way, and what was measured so far, by region and node."""

    def __init__(self, pairs: Mapping[str, Mapping[fx.Node, Pair]]) -> None:
        self.pairs = pairs
        self.wanted = {pair.place for region in pairs.values() for pair in region.values()}
        self.floats: dict[Place, deque[Tensor]] = defaultdict(deque)
        self.measured: dict[tuple[str, str], Measured] = defaultdict(Measured)


@contextmanager
def recording(twin: nn.Module, quantized: nn.Module, record: Record) -> Iterator[None]:
    """While it lasts, calls of the regions of both models are looked at. The float model has to go first."""
    for path, region in regions(twin):
        run_instead(region, _runs(_Float, path, record))
    for path, region in regions(quantized):
        run_instead(region, _runs(_Quantized, path, record))
    try:
        yield
    finally:
        for model in (twin, quantized):
            for _, region in regions(model):
                run_own_graph(region)


def _runs(side: Callable[[Region, str, Record], fx.Interpreter], path: str, record: Record) -> Callable[..., object]:
    def forward(region: Region, *args: object, **kwargs: object) -> object:
        return interpret(side(region, path, record), args, kwargs)

    return forward


class _Float(PlainInterpreter):
    def __init__(self, region: Region, path: str, record: Record) -> None:
        super().__init__(region)
        self.path, self.record = path, record

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        place = (self.path, n.name)
        if place in self.record.wanted and isinstance(value, Tensor) and value.is_floating_point():
            self.record.floats[place].append(value.detach().clone())  # a later op may write to it
        return value


class _Quantized(PlainInterpreter):
    def __init__(self, region: Region, path: str, record: Record) -> None:
        super().__init__(region)
        self.region, self.path, self.record = region, path, record
        self.pairs = record.pairs.get(path, {})
        self.read_as = {node: read_as(node) for node in self.pairs}
        self.alone: dict[fx.Node, Any] = {}  # what ops give that get the float model's tensors
        self.floats: dict[fx.Node, Tensor] = {}
        self.expected: dict[fx.Node, tuple[fx.Node, Tensor]] = {}  # by the node that has a tensor as it is read

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if n.op == "output":
            return value
        if n in self.pairs:
            self._expect(n, value)
        self.alone[n] = self._run_alone(n, value)
        if n.target in torch_compat.QUANTIZE_OPS and n.args[0] in self.floats:
            self._see_grid(n)
        if n in self.expected:
            self._compare(n, value)
        for last in self.user_to_last_uses.get(n, []):
            self.alone.pop(last, None)
            self.floats.pop(last, None)
        return value

    def _run_alone(self, n: fx.Node, value: object) -> object:
        """Return the op on the float model's tensors; what may hold state, or graphs of its own, is not run twice."""
        writes = n.target is operator.setitem and n.args[0] in self.floats  # to a tensor that others read later
        if n.op == "placeholder" or not (writes or self._can_repeat(n)):
            return self.floats.get(n, value)

        def given(source: fx.Node) -> Any:
            rounds = n.target in torch_compat.QUANTIZE_OPS and self.read_as.get(source, source) is not source
            return self.alone[source] if rounds or source not in self.floats else self.floats[source]

        args, kwargs = fx.node.map_arg((n.args, n.kwargs), given)
        return getattr(self, n.op)(n.target, args, kwargs)

    def _can_repeat(self, n: fx.Node) -> bool:
        ours = getattr(n.target, "namespace", "") in ("quantized_decomposed", "fxquant")
        return n.op != "get_attr" and (ours or OPS.of_node(n, self.region) is not None)

    def _expect(self, n: fx.Node, value: object) -> None:
        """Take the float model's tensor for this call."""
        waiting = self.record.floats.get(self.pairs[n].place)
        if not waiting:
            return
        wanted = waiting.popleft()
        if isinstance(value, Tensor) and wanted.shape == value.shape:
            self.floats[n] = wanted
            self.expected[self.read_as[n]] = n, wanted

    def _compare(self, n: fx.Node, value: object) -> None:
        node, wanted = self.expected.pop(n)
        self.floats[n] = wanted
        measured = self.record.measured[self.path, node.name]
        measured.ranges.add(wanted)
        if isinstance(value, Tensor) and value.is_floating_point():
            measured.errors.add(wanted, value)
            if n.op == "placeholder" or self._can_repeat(n):
                measured.own.add(wanted, self.alone[n])

    def _see_grid(self, n: fx.Node) -> None:
        """How the float model's tensor lies on the grid that it is rounded to."""
        source = n.args[0]
        assert isinstance(source, fx.Node)
        (_, scale, zero_point, *rest), _ = self.fetch_args_kwargs_from_env(n)
        axis, low, high = (rest[0], rest[1], rest[2]) if "per_channel" in str(n.target) else (None, rest[0], rest[1])
        wanted = self.floats[source]
        scale, zero_point = torch.as_tensor(scale), torch.as_tensor(0 if zero_point is None else zero_point)
        if axis is not None:
            shape = [-1 if at == axis % wanted.dim() else 1 for at in range(wanted.dim())]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        if scale.numel() == 1 or axis is not None:
            self.record.measured[self.path, source.name].rounding.add(wanted, scale, zero_point, (low, high))


def read_as(node: fx.Node) -> fx.Node:
    """Return the node that has a tensor as its readers get it: the dequantize after it, if all of them read that."""
    readers = [user for user in node.users if not reads_size(user)]
    step = readers[0] if len(readers) == 1 else None
    if step is not None and step.target in torch_compat.QUANTIZE_OPS:
        readers = list(step.users)
        step = readers[0] if len(readers) == 1 else None
    return step if step is not None and step.target in torch_compat.DEQUANTIZE_OPS else node
