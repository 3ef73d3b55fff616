"""Indices that a runtime would not check, or take for others, in an ONNX graph.

OpenVINO reads where an index says, in bounds or not, and computes integers of 64 bits in 32. ONNX Runtime counts
negative ones from the end, where torch refuses them. So before a runtime sees a graph, each index is

    known to be in bounds      by what makes it (integer_ends.py)
    moved from an input        the input is held to limits, which are looked at before each call
    computed                   held in bounds, and what had to be held is counted in an output more

and so are numbers that integers are divided by, and floats that become integers. A call that is not within all this
goes to torch, which has an answer or an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fxquant.engines.runtimes.integer_ends import ENDS, KEEPS, Ends, IntegerEnds, by_axis, constant, least_size
from fxquant.errors import FxQuantError
from fxquant.export.onnx.initializers import add_initializer, value_of

_ALONG = ("Gather", "GatherElements", "ScatterElements")
_POINTS = ("GatherND", "ScatterND")
_UNCHECKED = ("MaxUnpool", "RoiAlign", "Scatter", "Compress", "SequenceAt", "ReverseSequence", "DeformConv")
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
_TRIED = tuple(2**power for power in (31, 30, 24, 20, 16, 15, 8))  # limits of inputs, as the arithmetic on them allows
_OUTPUT = "out_of_bounds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Guards:
    """The limits of each input of a graph, and whether its last output counts what had to be held."""

    limits: tuple[Ends | None, ...]
    counted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    """An input of a node that says where to read or write: below `sizes`, None where they are not known."""

    node: ir.Node
    place: int
    sizes: tuple[int | None, ...]
    data: ir.Value | None  # whose sizes from `axis` on these are
    axis: int
    least: int  # of all sizes; 0 if that is not known

    @property
    def value(self) -> ir.Value:
        found = self.node.inputs[self.place]
        assert found is not None
        return found


def guard_indices(graph: ir.Graph, bits: int) -> Guards:
    """Guard a graph, in place, for a runtime that computes integers of 64 bits in `bits`."""
    batch = frozenset(str(size) for value in graph.inputs for size in value.shape or () if not isinstance(size, int))
    for node in graph.all_nodes():
        _check_pad(node)
    indices = [index for node in graph.all_nodes() if (index := _index_of(node, batch)) is not None]
    limits = _limits(graph, indices, bits)
    ends = IntegerEnds(bits, limits)
    guard = _Guard(graph, ends)
    for index in indices:
        low, high = ends.of(index.value)
        # the export itself writes constants that count from the end
        if high >= index.least or low < (0 if value_of(index.value) is None else -index.least):
            guard.hold(index)
    for node in list(graph):
        guard.hold_others(node)
    guard.finish()
    return Guards(limits=tuple(limits.get(value) for value in graph.inputs), counted=guard.total is not None)


def _check_pad(node: ir.Node) -> None:
    """Refuse a pad that repeats what is at an edge, and cuts some off: OpenVINO cuts first, and writes past the end."""
    if node.op_type != "Pad" or node.attributes.get_string("mode", "constant") == "constant":
        return
    pads = value_of(node.inputs[1])
    if pads is None or (pads < 0).any():
        raise FxQuantError(f"{node.name!r} (Pad) cuts off, or pads by data, and is not checked.")


def _index_of(node: ir.Node, batch: frozenset[str]) -> _Index | None:
    if node.op_type in _UNCHECKED:
        raise FxQuantError(f"{node.op_type} reads by data, and is not checked.")
    if node.op_type == "OneHot":
        depth = value_of(node.inputs[1])
        size = None if depth is None else int(depth.item())
        return _Index(node=node, place=0, sizes=(size,), data=None, axis=0, least=size or 0)
    if node.op_type not in (*_ALONG, *_POINTS):
        return None
    data = node.inputs[0]
    if data is None or data.shape is None:
        raise FxQuantError(f"{node.op_type} reads from a tensor whose rank is not known.")
    if node.op_type in _ALONG:
        first, count = node.attributes.get_int("axis", 0) % max(len(data.shape), 1), 1
    else:
        first, count = node.attributes.get_int("batch_dims", 0), by_axis(node.inputs[1], -1) or 0
    axes = range(first, min(first + count, len(data.shape)))
    sizes = tuple(by_axis(data, axis) for axis in axes)
    least = min((least_size(data, axis, batch) for axis in axes), default=0)
    return _Index(node=node, place=1, sizes=sizes, data=data, axis=first, least=least)


def _limits(graph: ir.Graph, indices: list[_Index], bits: int) -> dict[ir.Value, Ends]:
    """Return what inputs are held to: as indices to the least size, as numbers to what arithmetic on them allows."""
    tight: dict[ir.Value, Ends] = {}
    inputs = set(graph.inputs)
    for index in indices:
        source = _moved_from(index.value)
        if source in inputs and index.least > 0 and None not in index.sizes:
            tight[source] = 0, min(index.least - 1, tight.get(source, (0, index.least - 1))[1])
    if bits == 64:
        return tight
    whole = [value for value in graph.inputs if value.dtype in _INTEGERS and value not in tight]
    for limit in _TRIED if whole else _TRIED[:1]:
        limits = {**tight, **dict.fromkeys(whole, (-limit, limit - 1))}
        ends = IntegerEnds(bits, limits)
        for node in graph:
            for value in node.outputs:
                ends.of(value)
        if not ends.wide:
            return limits
    node = ends.wide[0]
    raise FxQuantError(f"{node.name!r} ({node.op_type}) may give integers of more bits than the runtime computes in.")


def _moved_from(value: ir.Value) -> ir.Value:
    """Return what a value was before ops that move numbers, and change none of those that are in 32 bits."""
    while (node := value.producer()) is not None:
        source = node.inputs[0] if node.inputs else None
        cast = node.op_type == "Cast" and value.dtype in _INTEGERS and source is not None and source.dtype in _INTEGERS
        picked = node.op_type == "Gather" and value_of(node.inputs[1]) is not None
        if source is None or not (node.op_type in KEEPS or cast or picked):
            break
        value = source
    return value


class _Guard:
    """Puts nodes into a graph that hold numbers, and count those that had to be."""

    def __init__(self, graph: ir.Graph, ends: IntegerEnds) -> None:
        self.graph, self.ends = graph, ends
        self.held: dict[tuple[ir.Value, tuple[int | None, ...], ir.Value | None], ir.Value] = {}
        self.total: ir.Value | None = None
        self.counts: list[ir.Value] = []

    def hold(self, index: _Index) -> None:
        """Let a node read by an index that is in bounds, whatever the index is."""
        node, value = index.node, index.value
        if node.graph is not self.graph:
            raise FxQuantError(f"{node.op_type} reads by data inside a loop.")
        if index.least < 1:
            raise FxQuantError(f"{node.op_type} reads by data from a tensor whose size is not known, or 0.")
        key = value, index.sizes, index.data if None in index.sizes else None
        if key not in self.held:
            if value.dtype is None:  # torch's export does not say of all
                value = self._put(node, "Cast", [value], value, ir.DataType.INT64, {"to": int(ir.DataType.INT64)})
            last = self._last(index, value.dtype or ir.DataType.INT64)
            zero = self._constant(0, value.dtype)
            held = self._put(node, "Max", [self._put(node, "Min", [value, last], value), zero], value)
            self._count(node, self._put(node, "Equal", [held, value], value, ir.DataType.BOOL))
            self.held[key] = held
        node.replace_input_with(index.place, self.held[key])

    def _last(self, index: _Index, dtype: ir.DataType) -> ir.Value:
        """Return the last place of each of the sizes, as a number if there is one."""
        known = [size - 1 for size in index.sizes if size is not None]
        if len(known) == len(index.sizes):
            return self._constant(known[0] if len(known) == 1 else known, dtype)
        node, data = index.node, index.data
        assert data is not None
        shape = ir.node("Shape", [data], {"start": index.axis, "end": index.axis + len(index.sizes)})
        node.prepend(shape)
        sizes = shape.outputs[0]
        sizes.dtype, sizes.shape = ir.DataType.INT64, ir.Shape([len(index.sizes)])
        if len(index.sizes) == 1:
            sizes = self._put(node, "Squeeze", [sizes], sizes)
            sizes.shape = ir.Shape(())
        if dtype is not ir.DataType.INT64:
            sizes = self._put(node, "Cast", [sizes], sizes, dtype, {"to": int(dtype)})
        return self._put(node, "Sub", [sizes, self._constant(1, dtype)], sizes)

    def hold_others(self, node: ir.Node) -> None:
        """Let integers be divided by numbers above 0 alone, and floats become integers that there are."""
        made = node.outputs[0] if node.outputs else None
        if node.op_type in ("Div", "Mod") and made is not None and made.dtype in _INTEGERS:
            self._hold_divisor(node)
        if node.op_type == "Cast" and made is not None and made.dtype is ir.DataType.INT64:
            source = node.inputs[0]
            if source is not None and source.dtype is ir.DataType.FLOAT and self.ends.word != ENDS[64]:
                self._hold_cast(node, source)

    def _hold_divisor(self, node: ir.Node) -> None:
        divisor = node.inputs[1]
        assert divisor is not None
        known = value_of(divisor)
        if self.ends.of(divisor)[0] >= 1 or (known is not None and not ((known == 0) | (known == -1)).any()):
            return
        if known is not None or node.graph is not self.graph:
            raise FxQuantError(f"{node.name!r} divides integers by 0 or by -1, or by data inside a loop.")
        held = self._put(node, "Max", [divisor, self._constant(1, divisor.dtype)], divisor)
        self._count(node, self._put(node, "Equal", [held, divisor], divisor, ir.DataType.BOOL))
        node.replace_input_with(1, held)

    def _hold_cast(self, node: ir.Node, source: ir.Value) -> None:
        if value_of(source) is not None or self.ends.is_size(source):
            return
        if node.graph is not self.graph:
            raise FxQuantError(f"{node.name!r} makes integers of floats inside a loop.")
        most = add_initializer(self.graph, f"{node.outputs[0].name}_most", np.array(2.0**24, np.float32))
        size = self._put(node, "Abs", [source], source)
        self._count(node, self._put(node, "LessOrEqual", [size, most], source, ir.DataType.BOOL))

    def _count(self, node: ir.Node, fine: ir.Value) -> None:
        wrong = self._put(node, "Not", [fine], fine)
        number = self._put(node, "Cast", [wrong], fine, ir.DataType.INT32, {"to": int(ir.DataType.INT32)})
        total = ir.node("ReduceSum", [number], {"keepdims": 0})
        node.prepend(total)
        total.outputs[0].dtype, total.outputs[0].shape = ir.DataType.INT32, ir.Shape(())
        self.counts.append(total.outputs[0])

    def finish(self) -> None:
        """Make the sum of what was counted the last output."""
        for count in self.counts:
            if self.total is None:
                self.total = count
                continue
            node = ir.node("Add", [self.total, count])
            self.graph.append(node)
            node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.INT32, ir.Shape(())
            self.total = node.outputs[0]
        if self.total is not None:
            self.total.name = _OUTPUT
            self.graph.outputs.append(self.total)

    def _constant(self, value: int | list[int], dtype: ir.DataType | None) -> ir.Value:
        return add_initializer(self.graph, "bound", constant(value, dtype or ir.DataType.INT64))

    def _put(
        self,
        before: ir.Node,
        kind: str,
        inputs: list[ir.Value],
        like: ir.Value,
        dtype: ir.DataType | None = None,
        how: dict[str, int] | None = None,
    ) -> ir.Value:
        node = ir.node(kind, inputs, how or {})
        before.prepend(node)
        node.outputs[0].dtype, node.outputs[0].shape = dtype or like.dtype, like.shape
        return node.outputs[0]
