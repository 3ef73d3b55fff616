"""Bags of embeddings in ONNX, as sums over scattered rows; torch.onnx writes a loop, which not every runtime takes.

bag of a row     how many offsets are at its place or before, less one: a running sum over scattered ones
result           rows added up, or the largest of them, in the line of their bag
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

Value = Any  # a tensor while the graph is being built
op: Any = opset18
_INT, _SHORT, _FLOAT = int(ir.DataType.INT64), int(ir.DataType.INT32), int(ir.DataType.FLOAT)
_LOWEST = -3.4028234663852886e38
_SUM, _MEAN, _MAX = range(3)


def embedding_bag(
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Value, Value, Value, Value]:
    """Return the bags first; the other results are for gradients, and are not read at inference."""
    one, zero = _ints(1), _ints(0)
    count = op.Shape(indices)
    bags = op.Shape(offsets)
    line = op.Expand(_constant([0], _SHORT), op.Add(count, one))  # an offset may be behind the last row
    line.shape = _more(indices)
    starts = op.ScatterElements(line, offsets, op.Expand(_constant([1], _SHORT), bags), axis=0, reduction="add")
    bag = op.Sub(op.CumSum(op.Slice(starts, zero, count), _constant(0, _INT)), _constant([1], _SHORT))
    bag = op.Cast(bag, to=_INT)
    if include_last_offset:
        bags = op.Sub(bags, one)
        if mode == _MAX:  # torch gives the last bag what comes behind the last offset
            bag = op.Min(bag, op.Sub(bags, one))
    rows = op.Gather(weight, indices, axis=0)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, one))
    if padding_idx is not None and not (isinstance(padding_idx, int) and padding_idx < 0):
        # rows that do not count go into a line of their own, behind the others
        bag = op.Where(op.Equal(indices, padding_idx), bags, bag)
    lines = op.Concat(op.Add(bags, one), op.Slice(op.Shape(rows), one, _ints(2)), axis=0)
    places = op.Expand(op.Unsqueeze(bag, one), op.Shape(rows))
    start, how = (_LOWEST, "max") if mode == _MAX else (0.0, "add")
    empty = op.Expand(_constant(start, _FLOAT), lines)
    empty.shape = ir.Shape([*_more(offsets), weight.shape[1]])
    made = op.ScatterElements(empty, places, rows, axis=0, reduction=how)
    if mode != _SUM:
        ones = op.Expand(_constant([1.0], _FLOAT), count)
        none = op.Expand(_constant([0.0], _FLOAT), op.Add(bags, one))
        none.shape = _more(offsets)
        sizes = op.Unsqueeze(op.ScatterElements(none, bag, ones, axis=0, reduction="add"), one)
        if mode == _MEAN:
            made = op.Div(made, op.Max(sizes, _constant(1.0, _FLOAT)))
        else:
            made = op.Where(op.Greater(sizes, _constant(0.0, _FLOAT)), made, _constant(0.0, _FLOAT))
    result = op.Slice(made, zero, bags)
    return result, bag, bags, bags


def _more(like: Value) -> ir.Shape:
    """Return the shape of a line of one more, which says that it is not empty."""
    size = like.shape[0]
    return ir.Shape([size + 1 if isinstance(size, int) else f"{size} + 1"])


def _ints(value: int) -> Value:
    return _constant([value], _INT)


def _constant(value: object, dtype: int) -> Value:
    return op.Constant(value=ir.tensor(value, dtype=ir.DataType(dtype)))
