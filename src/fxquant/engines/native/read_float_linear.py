"""Linears whose input stays float: their weights are integers of eight bits, or of four in groups."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import fx

from fxquant.engines.native import weight_only
from fxquant.engines.native.groups import Group
from fxquant.engines.native.layouts import as_rows
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import View, collapse, dense, round_up
from fxquant.engines.native.weight_only import WeightOnly, choose_blocks
from fxquant.engines.read_qdq import weight_holder
from fxquant.numerics.weights.quantized_weight import QuantizedWeight

_FEW = 8  # rows, up to which the bytes of a weight are what costs; for more of them, halves are taken apart beforehand


def read_float_linear(reader: Reader, group: Group) -> View:
    """Emit the kernel of a linear, with its activation."""
    node = group.node
    holder = weight_holder(reader.region, node.args[1])
    assert holder is not None
    if group.kind != "linear" or group.other is not None or group.quantize is not None:
        raise Unread("the kernel takes floats in linears alone")
    bits, size = _form(holder, node.args[1])
    x = as_rows(reader, reader.floats(node.args[0]))
    shape = reader.shape(group.nodes[-1])
    out = dense("f32", shape, tuple(range(len(shape))), None, x.level + x.level % 2)
    rows = math.prod(x.shape[:-1])
    outputs, inner = shape[-1], x.shape[-1]
    spec = WeightOnly(
        rows=rows,
        inner=inner,
        in_row=4 * _row_step(x),
        out_row=4 * _row_step(out),
        blocks=choose_blocks(round_up(outputs), rows, reader.machine),
        bits=bits if rows <= _FEW else 8,
        group=size,
        act=group.act,
    )
    weights, params = _packed(reader, group, holder, spec)
    suffix = f" {group.act.kind}" if group.act is not None else ""
    reader.emit(
        weight_only.emit,
        spec,
        (pointer(x), reader.constant(weights), reader.constant(params), pointer(out)),
        [x],
        out,
        blocks=len(spec.blocks),
        label=f"float linear {'x'.join(map(str, x.shape))} -> {outputs}{suffix}",
        macs=out.numel * inner,
        single=rows == 1,
    )
    return out


def _form(holder: QuantizedWeight, weight: object) -> tuple[int, int]:
    """(bits, group size, 0 for a scale per row) of a weight that the kernel takes."""
    spec, inner = holder.spec, holder.weight_shape[1]
    plain = isinstance(weight, fx.Node) and not weight.kwargs
    if not plain or holder.weight_zero_point is not None or holder.stored.device.type != "cpu":
        raise Unread("its weight has zero points, or is not on the CPU")
    if spec.dtype != torch.int8 or spec.bits not in (4, 8):
        raise Unread("its weight is not of four or eight bits")
    if spec.granularity == "per_group":
        size = int(spec.group_size or 0)
        if size < 2 or inner % size or size % 2:
            raise Unread("its groups are of different sizes")
        return spec.bits, size
    if spec.granularity == "per_channel" and spec.axis != 0:
        raise Unread("its scales are those of inputs")
    return 8, 0


def _packed(reader: Reader, group: Group, holder: QuantizedWeight, spec: WeightOnly) -> tuple[np.ndarray, np.ndarray]:
    q = holder.integers.detach().numpy()
    bias_node = group.node.args[2] if len(group.node.args) > 2 else None
    given = reader.constant_of(bias_node) if bias_node is not None else None
    channels = sum(spec.blocks) * reader.machine.floats
    weight = np.zeros((channels, spec.inner), np.int8)
    weight[: len(q)] = q
    scale, bias = np.zeros((channels, spec.groups)), np.zeros(channels)
    found = holder.weight_scale.detach().to(torch.float64).numpy()
    scale[: len(q)] = found if spec.group else np.broadcast_to(found.reshape(-1), (len(q),))[:, None]
    if given is not None:
        bias[: len(q)] = given.detach().to(torch.float64).numpy()
    if not (np.isfinite(scale).all() and np.isfinite(bias).all()):
        raise Unread("its scales or biases are not finite")
    return weight_only.pack(weight, scale, bias, spec, reader.machine)


def _row_step(view: View) -> int:
    """Elements from one row to the next."""
    leading = view.shape[:-1]
    dims, strides = collapse(leading, [view.strides[:-1]], tuple(range(len(leading))))
    assert len(dims) <= 1
    return strides[0][0] if dims else 0
