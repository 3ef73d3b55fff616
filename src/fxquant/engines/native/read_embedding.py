"""Embeddings: rows of a table, of floats or of int8 with a scale for each row, by ids that are inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from fxquant.engines.native import embedding
from fxquant.engines.native.embedding import Embedding
from fxquant.engines.native.ops import Pointer, levels, pointer
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Shape
from fxquant.engines.native.slots import Import
from fxquant.engines.native.values import Buffer, View, dense
from fxquant.ops.table import argument
from fxquant.passes.convert_weights import dequantize_rows

_IDS = (torch.int64, torch.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a node takes rows from: `nodes` are those that its kernel takes in, itself the last."""

    nodes: tuple[fx.Node, ...]
    ids: fx.Node
    table: fx.Node
    scales: fx.Node | None


def find_rows(reader: Reader, node: fx.Node) -> Rows | None:
    """Return the embedding that ends at a node, if the kernel has it."""
    if node.target is not dequantize_rows:
        found = _lookup(reader, node)
        if found is None or any(user.target is dequantize_rows for user in node.users):
            return None
        made = Rows(nodes=(node,), ids=found[0], table=found[1], scales=None)
        return made if _fits(reader, made, torch.float32) else None
    rows, scale, zero, group, dtype = (*node.args, *node.kwargs.values())
    if not isinstance(rows, fx.Node) or not isinstance(scale, fx.Node) or len({*rows.users, *scale.users}) > 1:
        return None
    first, second = _lookup(reader, rows), _lookup(reader, scale)
    if zero is not None or group is not None or dtype != torch.float32 or first is None or second is None:
        return None
    (ids, table), (same, scales) = first, second
    made = Rows(nodes=(rows, scale, node), ids=ids, table=table, scales=scales)
    return made if ids is same and _fits(reader, made, torch.int8) else None


def _lookup(reader: Reader, node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(ids, table) of a plain call of torch's embedding."""
    op = reader.table.of_node(node, reader.region)
    if op is None or op.kind != "embedding" or node.op == "call_module":
        return None
    ids, table = argument(node, op, 0), argument(node, op, 1)
    shape = reader.shapes.get(node)
    if not isinstance(ids, fx.Node) or not isinstance(table, fx.Node) or argument(node, op, 3) is not None:
        return None
    return (ids, table) if isinstance(shape, Shape) and shape.batched else None


def _fits(reader: Reader, rows: Rows, dtype: torch.dtype) -> bool:
    ids, table = reader.shapes.get(rows.ids), reader.shapes.get(rows.table)
    if not isinstance(ids, Shape) or ids.dtype not in _IDS or not ids.batched:
        return False
    if not isinstance(table, Shape) or table.dtype != dtype or len(table.dims) != 2 or 0 in table.dims:
        return False
    if rows.scales is None:
        return rows.table.op == "get_attr"
    scales = reader.shapes.get(rows.scales)
    if not isinstance(scales, Shape) or scales.dtype != torch.float32 or math.prod(scales.dims) != table.dims[0]:
        return False
    return rows.table.op == "get_attr"


def read_rows(reader: Reader, rows: Rows) -> View:
    """Emit the kernel. The table stays where it is, as it may be large."""
    shape, ids, table = reader.shape(rows.nodes[-1]), reader.shapes[rows.ids], reader.shapes[rows.table]
    given = _handed_over(reader, rows.ids, ids)
    source = _handed_over(reader, rows.table, table)
    scales = source if rows.scales is None else _handed_over(reader, rows.scales, reader.shapes[rows.scales])
    missing = reader.missing()
    reads = [View(buffer=each, shape=(), strides=()) for each in (source, scales)]
    reads.append(View(buffer=given, shape=(), strides=(), level=reader.values[rows.ids].level))
    out = dense("f32", shape, tuple(range(len(shape))), None, levels(reads), tight=True)
    count, width = math.prod(ids.dims), table.dims[1]
    spec = Embedding(
        ids=count,
        id_type="i64" if ids.dtype == torch.int64 else "i32",
        rows=table.dims[0],
        width=width,
        integers=rows.scales is not None,
        out_row=4 * width,
    )
    pointers = (*(Pointer(buffer=each) for each in (given, source, scales, missing)), pointer(out))
    reader.emit(
        embedding.emit,
        spec,
        pointers,
        reads,
        out,
        rows=count,
        label=f"embedding {count} of {table.dims[0]}x{width}",
    )
    return out


def _handed_over(reader: Reader, node: fx.Node, shape: Shape) -> Buffer:
    """Return the memory of a tensor of Python's."""
    known = next((found for found in reader.imports.values() if found.node is node), None)
    if known is not None:
        return known.buffer
    slot, size = reader.new_slot(), math.prod(shape.dims) * shape.dtype.itemsize
    buffer = Buffer(dtype="u8", size=size, space="slot", slot=slot, same=not shape.batched)
    reader.imports[slot] = Import(
        node=node, buffer=buffer, dims=shape.dims, dtype=shape.dtype, channels_last=False, same=not shape.batched
    )
    return buffer
