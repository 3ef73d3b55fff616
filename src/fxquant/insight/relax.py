"""Kernels of a quantized model in float, and ranges made wider, without quantizing again: what would it bring?

The QDQ graph is run with another arithmetic at some places. A kernel in float reads its operands before they were
rounded, and has the weight and bias of the float model: those that make up for a rounded weight would be wrong beside
one that is not. What other kernels read is rounded as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from fxquant.capture.run_untraced import Draws
from fxquant.flows.calibrate import run_batch
from fxquant.graph import torch_compat
from fxquant.graph.interpret import PlainInterpreter, interpret
from fxquant.graph.lowering import run_instead, run_own_graph
from fxquant.graph.notes import decision_of, note_of
from fxquant.graph.paths import find_module, join_path
from fxquant.graph.region import Region, regions
from fxquant.insight.compare import add_outputs
from fxquant.insight.measure import Errors
from fxquant.insight.sides import Sides
from fxquant.insight.weights import float_source, float_tensor
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.ops.op import Role
from fxquant.ops.table import OPS

Kernel = tuple[str, str]  # the path of a region, the group or the name of a node


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Kernels to compute in float, and ranges for tensors, by (region, node), that their grids are to reach.

    `exact` are all weights, or all activations: they are not rounded, and the others are as before.
    """

    floating: frozenset[Kernel] = frozenset()
    ranges: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    exact: Literal["weights", "activations"] | None = None


def kernels(sides: Sides) -> dict[Kernel, list[fx.Node]]:
    """Return the nodes of each kernel of the quantized model, in the order of the run."""
    found: dict[Kernel, list[fx.Node]] = {}
    for path, region in regions(sides.reference):
        for node in region.graph.nodes:
            decision, note = decision_of(node), note_of(node)
            if decision is not None and decision.status != "float":
                group = note.group if note is not None and note.group else node.name
                found.setdefault((path, group), []).append(node)
    return found


def with_followers(sides: Sides, floating: frozenset[Kernel]) -> frozenset[Kernel]:
    """Add the ops that are int8 only between int8 kernels, where there is a float one beside them now."""
    every = kernels(sides)
    owner = {(kernel[0], node): kernel for kernel, nodes in every.items() for node in nodes}
    sources: dict[Kernel, set[Kernel | None]] = {kernel: set() for kernel in every}
    readers: dict[Kernel, set[Kernel | None]] = {kernel: set() for kernel in every}
    for kernel, nodes in every.items():
        for source in {each for node in nodes for each in operands(node)}:
            made = owner.get((kernel[0], source))
            if made != kernel:
                sources[kernel].add(made)
        for reader in {each for node in nodes for each in _readers(node)}:
            read_by = owner.get((kernel[0], reader))
            if read_by != kernel:
                readers[kernel].add(read_by)
    followers = {kernel for kernel, nodes in every.items() if not any(_computes(node) for node in nodes)}
    found = set(floating)
    while True:
        more = {kernel for kernel in followers - found if sources[kernel] & found or readers[kernel] <= {*found, None}}
        more = {kernel for kernel in more if (sources[kernel] | readers[kernel]) & found}
        if not more:
            return frozenset(found)
        found |= more


def _computes(node: fx.Node) -> bool:
    decision = decision_of(node)
    op = OPS.by_kind.get(decision.kind) if decision is not None else None
    return op is not None and op.role is Role.COMPUTE


def operands(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what a node reads, before it was rounded."""
    for source in node.all_input_nodes:
        rounded = source.args[0] if source.target in torch_compat.DEQUANTIZE_OPS else None
        before = (
            rounded.args[0] if isinstance(rounded, fx.Node) and rounded.target in torch_compat.QUANTIZE_OPS else None
        )
        yield before if isinstance(before, fx.Node) else source


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Yield what reads a node, through rounding."""
    for user in node.users:
        if user.target in (*torch_compat.QUANTIZE_OPS, *torch_compat.DEQUANTIZE_OPS):
            yield from _readers(user)
        else:
            yield user


def output_sqnr(sides: Sides, data: Iterable[object], change: Change, wanted: Sequence[object] | None = None) -> float:
    """Tell how close the outputs are to the float model's with a change, in dB.

    `wanted` are those, if they are known.
    """
    errors, data = Errors(), list(data)
    wanted = float_outputs(sides, data) if wanted is None else wanted
    draws = Draws(sides.original)
    with torch.no_grad(), changed(sides, change):
        for index, (batch, expected) in enumerate(zip(data, wanted, strict=True)):
            with draws.at(index):
                found = run_batch(sides.reference, batch)
            add_outputs(errors, expected, found)
    return errors.sqnr


@torch.no_grad()
def float_outputs(sides: Sides, data: Iterable[object]) -> list[object]:
    """Return what the float model returns for each batch."""
    draws, outputs = Draws(sides.original), list[object]()
    for index, batch in enumerate(data):
        with draws.at(index):
            outputs.append(run_batch(sides.original, batch))
    return outputs


@contextmanager
def changed(sides: Sides, change: Change) -> Iterator[nn.Module]:
    """Give the quantized model a change for as long as this lasts."""
    nodes = kernels(sides)
    for path, region in regions(sides.reference):
        floating = {node for kernel in change.floating if kernel[0] == path for node in nodes.get(kernel, ())}
        ranges = {name: ends for (at, name), ends in change.ranges.items() if at == path}
        run_instead(region, _forward(path, sides, floating, ranges, change.exact))
    try:
        yield sides.reference
    finally:
        for _, region in regions(sides.reference):
            run_own_graph(region)


def _forward(
    path: str, sides: Sides, floating: set[fx.Node], ranges: Mapping[str, tuple[float, float]], exact: str | None
) -> Callable[..., object]:
    def forward(region: Region, *args: object, **kwargs: object) -> object:
        made = _Changed(region, path, sides, floating, ranges)
        made.exact = exact
        return interpret(made, args, kwargs)

    return forward


class _Changed(PlainInterpreter):
    def __init__(
        self,
        region: Region,
        path: str,
        sides: Sides,
        floating: set[fx.Node],
        ranges: Mapping[str, tuple[float, float]],
    ) -> None:
        super().__init__(region)
        self.region, self.path, self.sides, self.floating, self.ranges = region, path, sides, floating, ranges
        self.exact: str | None = None
        self.before: dict[fx.Node, Any] = {}  # what was rounded, for those that read it as it was
        self.kept = {
            source.args[0]
            for node in floating
            for source in node.all_input_nodes
            if source.target in torch_compat.DEQUANTIZE_OPS and not self._stays(source)
        }

    def _stays(self, n: fx.Node) -> bool:
        """Tell whether a tensor is integers as before: an int8 kernel makes it for another one."""
        rounded = n.args[0]
        made = rounded.args[0] if isinstance(rounded, fx.Node) and rounded.args else None
        decision = decision_of(made) if isinstance(made, fx.Node) else None
        by_int8 = decision is not None and decision.status == "int8" and made not in self.floating
        return by_int8 and any(reader not in self.floating and note_of(reader) for reader in _readers(n))

    def run_node(self, n: fx.Node) -> object:
        if self.exact == "activations" and n.target in (*torch_compat.QUANTIZE_OPS, *torch_compat.DEQUANTIZE_OPS):
            value = self.env[n.args[0]]  # type: ignore[index]
            if isinstance(value, Tensor) and value.is_floating_point():
                return value  # integers are weights
        if n in self.kept and n.target in torch_compat.QUANTIZE_OPS:
            self.before[n] = self.env[n.args[0]]  # type: ignore[index]
        return super().run_node(n)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        owner = self._owner(n) if n in self.floating or self.exact == "weights" else None
        if n in self.floating or owner is not None:
            return fx.node.map_arg((n.args, n.kwargs), lambda source: self._as_float(source, owner))
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return self._wider(n, args), kwargs

    def _owner(self, n: fx.Node) -> tuple[str, nn.Module] | None:
        """Return the path of the weight that an op reads, and the float model that has it."""
        for source in n.all_input_nodes:
            read = source.args[0] if source.target in torch_compat.DEQUANTIZE_OPS else None
            if isinstance(read, fx.Node) and read.op == "get_attr" and str(read.target).endswith(".weight"):
                owner = str(read.target).removesuffix(".weight")
                holder, path = find_module(self.region, owner), join_path(self.path, owner)
                if isinstance(holder, QuantizedWeight):
                    model = float_source(self.sides, holder, path)
                    return None if model is None else (owner, model)
        return None

    def _as_float(self, source: fx.Node, owner: tuple[str, nn.Module] | None) -> Any:
        rounds = source.target in torch_compat.DEQUANTIZE_OPS
        read = source.args[0] if rounds else source
        assert isinstance(read, fx.Node)
        if read in self.before:
            return self.before[read]
        if read.op == "get_attr" and owner is not None:
            at, _, name = str(read.target).rpartition(".")
            if at == owner[0] and name in ("weight", "bias"):
                found, value = float_tensor(owner[1], join_path(self.path, at), name), self.env[source]
                return value if found is None and name == "weight" else _or_zero(found, value)
        return self.env[source]

    def _wider(self, n: fx.Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a quantize or dequantize, on a grid that reaches a range."""
        source = n.args[0] if n.target in torch_compat.QUANTIZE_OPS else None
        if n.target in torch_compat.DEQUANTIZE_OPS and isinstance(n.args[0], fx.Node):
            source = n.args[0].args[0] if n.args[0].target in torch_compat.QUANTIZE_OPS else None
        if not isinstance(source, fx.Node) or source.name not in self.ranges or "per_channel" in str(n.target):
            return args
        value, scale, zero_point, low, high, *rest = args
        scale = torch.as_tensor(scale)
        if scale.numel() != 1:
            return args
        ends = self.ranges[source.name]
        steps = [(ends[0], low - int(zero_point or 0)), (ends[1], high - int(zero_point or 0))]
        needed = max([float(scale), *(end / count for end, count in steps if count and end * count > 0)])
        return (value, needed if isinstance(args[1], float) else torch.as_tensor(needed), zero_point, low, high, *rest)


def _or_zero(found: Tensor | None, value: Tensor) -> Tensor:
    return found if found is not None else torch.zeros_like(value)
