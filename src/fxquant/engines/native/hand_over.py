"""What Python sees of a graph that is read: nodes that it runs, and the native tensors that it gets."""

from __future__ import annotations

import math

import torch
from torch import fx

from fxquant.engines.native.lazy import Moved, Outside, Value, lazy
from fxquant.engines.native.ops import levels
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape
from fxquant.engines.native.slots import Export
from fxquant.engines.native.values import TRUTH, Buffer, View, axes_by_stride
from fxquant.graph.nodes import reads_size


def run_outside(reader: Reader, node: fx.Node, reason: str) -> Outside:
    """Leave a node to Python; its native operands are handed over."""
    reader.reasons[node] = reason
    if reads_size(node) and all(isinstance(reader.shapes.get(operand), Shape) for operand in node.all_input_nodes):
        return Outside(node=node, level=-1)
    level, constant = -1, True
    for operand in node.all_input_nodes:
        value = seen_by_python(reader, operand)
        if not isinstance(value, Outside):
            constant = False
            level = max(level, hand_over(reader, operand).view.level + 1)
        else:
            constant &= value.constant
            level = max(level, value.level)
    return Outside(node=node, level=level + (level + 1) % 2, constant=constant and bool(node.all_input_nodes))


def seen_by_python(reader: Reader, node: fx.Node) -> Value:
    """Return the value of a node that Python reads. Bytes with a scale for each channel, it makes floats."""
    value = reader.values[node]
    view = value.view if isinstance(value, Moved) else value
    if node in reader.exports or not isinstance(view, View) or view.grid is None or not view.grid.channels:
        return value
    if reader.sizes[node].dtype != torch.uint8:  # no kernel does
        value = reader.values[node] = run_outside(reader, node, "its input has a scale for each channel")
    return value


def hand_over(reader: Reader, node: fx.Node) -> Export:
    """Make the native tensor of a node one of torch's."""
    if node in reader.exports:
        return reader.exports[node]
    value = reader.values[node]
    view = value.view if isinstance(value, Moved) else reader.view(node, channels=True)
    dtype = reader.sizes[node].dtype
    grid = view.grid if dtype == torch.uint8 else TRUTH if dtype == torch.bool else None
    order = axes_by_stride(view)
    size = math.prod(view.shape)
    slot = reader.new_slot()
    buffer = Buffer(dtype="f32" if grid is None else "u8", size=size, space="slot", slot=slot)
    sizes = tuple(view.shape[axis] for axis in order)
    dense_strides = torch.empty(sizes, device="meta").stride()
    strides = [0] * len(order)
    for axis, step in zip(order, dense_strides, strict=True):
        strides[axis] = step
    out = View(
        buffer=buffer,
        shape=view.shape,
        strides=tuple(strides),
        grid=grid,
        level=levels([view]),
    )
    reader.compute(lazy(view), None, out.grid, out)
    axis = value.axis if isinstance(value, Moved) else 0
    reader.exports[node] = Export(view=out, slot=slot, dims=order, axis=axis, dtype=dtype)
    return reader.exports[node]
