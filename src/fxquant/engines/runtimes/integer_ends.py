"""Between which ends the integers of an ONNX graph lie, by what makes them.

    inputs        the limits that a call is held to
    moves         as before; arithmetic: by its formula; indices: by the size that they count
    all else      what the runtime's words hold

OpenVINO computes integers of 64 bits in 32, and some ops in floats, which are exact up to 24. `wide` has the nodes
whose numbers may leave those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from fxquant.export.onnx.initializers import value_of

Ends = tuple[int, int]
ENDS = {bits: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 25, 32, 64)}
_SMALL: dict[ir.DataType, Ends] = {
    **{ir.DataType.BOOL: (0, 1), ir.DataType.UINT8: (0, 255), ir.DataType.INT8: ENDS[8]},
    **{ir.DataType.INT16: ENDS[16], ir.DataType.UINT16: (0, 2**16 - 1), ir.DataType.INT32: ENDS[32]},
}
_LONG = (ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32)
_COUNTED: Ends = (0, 2**31 - 1)  # sizes, and what counts along one that is not known
_COUNTS = ("Shape", "Size", "NonZero")
_MOVES = (
    *("Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Slice", "Expand", "Tile", "Split"),
    *("Gather", "GatherElements", "GatherND", "ReduceMax", "ReduceMin"),
)
KEEPS = ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Slice", "Expand", "Tile")
_IN_FLOATS = {  # by OpenVINO, and how many of the inputs are numbers
    **{"Div": 2, "Mod": 2, "Pow": 2, "Clip": 1, "ReduceSum": 1, "ReduceMax": 1, "ReduceMin": 1, "ReduceProd": 1},
}
_COMPUTES = ("Pow", "BitShift", "ReduceProd", "MatMul", "Einsum", "ReduceSumSquare", "ReduceL1")


class IntegerEnds:
    """The ends of each value of a graph, for a runtime whose words have `bits`, on inputs within `limits`."""

    def __init__(self, bits: int, limits: Mapping[ir.Value, Ends]) -> None:
        self.word = ENDS[bits]
        self.limits = limits
        self.found: dict[ir.Value, Ends] = {}
        self.sizes: dict[ir.Value, bool] = {}
        self.wide: list[ir.Node] = []

    def of(self, value: ir.Value | None) -> Ends:
        """Return the ends of the integers of a value. Those of floats say nothing."""
        if value is None:
            return self.word
        if value not in self.found:
            made = self.limits.get(value) or self._constant(value) or self._made(value)
            self.found[value] = made
        return self.found[value]

    def _constant(self, value: ir.Value) -> Ends | None:
        array = value_of(value)
        if array is None or array.dtype.kind not in "iub":
            return None
        return (int(array.min()), int(array.max())) if array.size else (0, 0)

    def _made(self, value: ir.Value) -> Ends:
        node, whole = value.producer(), self._whole(value)
        if node is None:
            return whole
        ends = self._by_op(node, value)
        if node.op_type in _IN_FLOATS and not _is_float(value) and self.word == ENDS[32]:
            read = [self.of(each) for each in node.inputs[: _IN_FLOATS[node.op_type]]]
            self._note(node, _union([*read, ends or whole]), ENDS[25])
        if ends is None or _is_float(value):
            if node.op_type in _COMPUTES and value.dtype in _LONG:
                self._note(node, ENDS[64])
            return whole
        if value.dtype in _LONG:
            self._note(node, ends)
        low, high = max(ends[0], whole[0]), min(ends[1], whole[1])
        # what wraps around may be anything
        return (low, high) if low <= high and (value.dtype in _LONG or ends == (low, high)) else whole

    def _note(self, node: ir.Node, ends: Ends, room: Ends | None = None) -> None:
        low, high = room or self.word
        if (ends[0] < low or ends[1] > high) and not all(self.is_size(x) for x in node.inputs):
            self.wide.append(node)

    def _whole(self, value: ir.Value) -> Ends:
        return _SMALL.get(value.dtype, self.word) if value.dtype is not None else self.word

    def is_size(self, value: ir.Value | None) -> bool:
        """Tell whether a value is made of sizes and constants alone: torch has bounded those."""
        if value is None or value_of(value) is not None:
            return True
        if value not in self.sizes:
            node = value.producer()
            self.sizes[value] = node is not None and (
                node.op_type in ("Shape", "Size") or all(self.is_size(each) for each in node.inputs)
            )
        return self.sizes[value]

    def _by_op(self, node: ir.Node, value: ir.Value) -> Ends | None:
        op = node.op_type
        if op in _MOVES:
            return self.of(node.inputs[0])
        if op in _COUNTS:
            return _COUNTED
        if op in ("ArgMax", "ArgMin", "TopK"):
            size = by_axis(node.inputs[0], node.attributes.get_int("axis", -1 if op == "TopK" else 0))
            return (0, max(size - 1, 0)) if size is not None else _COUNTED
        if op == "Cast":
            return self._cast(node, value)
        rule = _RULES.get(op)
        return None if rule is None else rule(node, [self.of(each) for each in node.inputs])

    def _cast(self, node: ir.Node, value: ir.Value) -> Ends | None:
        source = node.inputs[0]
        if source is None or _is_float(source):
            # guard_indices.py holds those of data
            return ENDS[25] if value.dtype in _LONG and self.word == ENDS[32] and not self.is_size(source) else None
        low, high = self.of(source)
        limits = ENDS[64] if value.dtype in _LONG else self._whole(value)
        return (low, high) if limits[0] <= low and high <= limits[1] else limits


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def by_axis(value: ir.Value | None, axis: int) -> int | None:
    """Return a size of a value, if it is known."""
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _union(ends: list[Ends]) -> Ends:
    return min(low for low, _ in ends), max(high for _, high in ends)


def _corners(function: Callable[[int, int], int], ends: list[Ends]) -> Ends:
    made = [function(a, b) for a in ends[0] for b in ends[1]]
    return min(made), max(made)


def _divisor(node: ir.Node, ends: Ends) -> Ends:
    """Return the ends of a divisor: one that is computed is held above 0 (guard_indices.py)."""
    return ends if value_of(node.inputs[1]) is not None else (max(ends[0], 1), max(ends[1], 1))


def _mod(node: ir.Node, ends: list[Ends]) -> Ends:
    low, high = _divisor(node, ends[1])
    most = max(abs(low), abs(high)) - 1
    return (-most, most) if low < 1 or node.attributes.get_int("fmod", 0) else (0, most)


def _divide(node: ir.Node, ends: list[Ends]) -> Ends:
    if _divisor(node, ends[1])[0] < 1:
        return _union([ends[0], (-ends[0][1], -ends[0][0]), (0, 0)])
    return min(ends[0][0], 0), max(ends[0][1], 0)


def _clip(node: ir.Node, ends: list[Ends]) -> Ends:
    low, high = ends[0]
    for index, given in enumerate(node.inputs[1:3], 1):
        if given is not None:
            least, most = ends[index]
            low, high = (max(low, least), max(high, most)) if index == 1 else (min(low, least), min(high, most))
    return low, high


def _sum_over(count: int | None, ends: Ends) -> Ends | None:
    return None if count is None else (min(0, ends[0] * count), max(0, ends[1] * count))


def _cumsum(node: ir.Node, ends: list[Ends]) -> Ends:
    axis = value_of(node.inputs[1])
    count = by_axis(node.inputs[0], int(axis.item())) if axis is not None else None
    return _sum_over(count, ends[0]) or ENDS[64]


def _reduce_sum(node: ir.Node, ends: list[Ends]) -> Ends:
    source = node.inputs[0]
    given = value_of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    axes = given.reshape(-1).tolist() if given is not None else range(len(source.shape or ()) if source else 0)
    sizes = [by_axis(source, axis) for axis in axes]
    known = [size for size in sizes if size is not None]
    return _sum_over(math.prod(known) if len(known) == len(sizes) else None, ends[0]) or ENDS[64]


def _range(node: ir.Node, ends: list[Ends]) -> Ends:
    return _union(ends[:2])


def _scatter(node: ir.Node, ends: list[Ends]) -> Ends | None:
    added = node.attributes.get_string("reduction", "none") != "none"
    return ENDS[64] if added else _union([ends[0], ends[2]])


_RULES: dict[str, Callable[[ir.Node, list[Ends]], Ends | None]] = {
    "Add": lambda node, ends: (ends[0][0] + ends[1][0], ends[0][1] + ends[1][1]),
    "Sub": lambda node, ends: (ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]),
    "Mul": lambda node, ends: _corners(lambda a, b: a * b, ends),
    "Neg": lambda node, ends: (-ends[0][1], -ends[0][0]),
    "Abs": lambda node, ends: (0, max(abs(ends[0][0]), abs(ends[0][1]))),
    "Mod": _mod,
    "Div": _divide,
    "Clip": _clip,
    "Max": lambda node, ends: (max(low for low, _ in ends), max(high for _, high in ends)),
    "Min": lambda node, ends: (min(low for low, _ in ends), min(high for _, high in ends)),
    "Concat": lambda node, ends: _union(ends),
    "Where": lambda node, ends: _union(ends[1:]),
    "OneHot": lambda node, ends: ends[2],
    "CumSum": _cumsum,
    "ReduceSum": _reduce_sum,
    "Range": _range,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
}


def least_size(value: ir.Value, axis: int, batch: frozenset[str]) -> int:
    """Return how large a size is at least: the batch is one, and so is what is times the batch; 0 if not known."""
    size = by_axis(value, axis)
    if size is not None or value.shape is None:
        return size or 0
    node = value.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Reshape" and len(value.shape) == 1 else None
    if source is not None and source.shape is not None:  # all of a tensor in a line
        return math.prod(least_size(source, each, batch) for each in range(len(source.shape)))
    terms = [term.split("*") for term in str(value.shape[axis]).replace(" ", "").split("+")]
    return sum(math.prod(int(each) if each.isdigit() else int(each in batch) for each in term) for term in terms)


def constant(value: int | list[int], dtype: ir.DataType) -> np.ndarray:
    """Return an array of a graph's integers."""
    return np.array(value, dtype.numpy())
