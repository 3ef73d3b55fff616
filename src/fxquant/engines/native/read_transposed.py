"""Transposed convolution: one convolution for each phase of its stride.

Output s q + r - padding (r from 0 to s - 1) has the taps r, r + s, r + 2 s, ... of the kernel, on the inputs q, q - 1,
q - 2, ...: a plain convolution with stride 1 whose results lie s pixels apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fxquant.engines.native.arithmetic import Numbers, numbers, with_weight
from fxquant.engines.native.emit_weighted import Extent, depth_of, emit_gemm
from fxquant.engines.native.gemm_shape import Taps
from fxquant.engines.native.groups import TRANSPOSED, Group, Pads, as_tuple
from fxquant.engines.native.layouts import as_image, tall, with_height
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, drop_height, image
from fxquant.engines.read_qdq import weight_holder
from fxquant.ops.table import argument


@dataclass(frozen=True, kw_only=True, slots=True)
class _Phase:
    """One axis of a phase: its taps from the first input to the last, its first input, output and count of outputs."""

    taps: tuple[int, ...]
    source: int
    out: int
    count: int


def _phases(size: int, kernel: int, stride: int, padding: int) -> list[_Phase]:
    """Return all phases of an axis with `size` outputs."""
    found = []
    for r in range(stride):
        taps = tuple(range(r, kernel, stride))[::-1]
        first = -(-(padding - r) // stride)
        out = stride * first + r - padding
        count = max(0, -(-(size - out) // stride))
        if count:
            found.append(_Phase(taps=taps, source=first - max(len(taps) - 1, 0), out=out, count=count))
    return found


def read_transposed(reader: Reader, group: Group, x: View, grid: Grid | None) -> View:
    """Emit the kernels of a transposed convolution."""
    op = reader.table.of_node(group.node, reader.region)
    assert op is not None and x.grid is not None
    count = TRANSPOSED[group.kind]
    stride = (1, 1, *as_tuple(argument(group.node, op, 3, 1), count))[-max(2, count) :]
    padding = (0, 0, *as_tuple(argument(group.node, op, 4, 0), count))[-max(2, count) :]
    dilation = as_tuple(argument(group.node, op, 7, 1), count)
    if argument(group.node, op, 6, 1) != 1 or set(dilation) != {1}:
        raise Unread("groups or dilation of a transposed convolution")
    made = numbers(reader, group, x.grid, axis=1)
    end = group.nodes[-1]
    shape = reader.shape(end)
    full = tall(shape)
    holder = weight_holder(reader.region, group.node.args[1])
    assert holder is not None
    kernel = (1, *holder.weight_shape[2:])[-max(2, count) :]
    axes = list(map(_phases, full[1:], kernel, stride, padding))
    x = as_image(reader, with_height(x), _pads(axes, with_height(x)))
    pad = reader.border(end) if grid is not None else None
    out = image("f32" if grid is None else "u8", full, pad or (), grid, x.level + x.level % 2)
    each = list(itertools.product(*axes))
    for index, phases in enumerate(each):
        _emit_phase(reader, group, made, (x, out), phases, (kernel, stride), last=index == len(each) - 1)
    return drop_height(out) if len(shape) == 2 else out


def _pads(axes: Sequence[list[_Phase]], x: View) -> Pads:
    """Tell how far the taps reach over the edges of the input."""
    low, high = [], []
    for phases, size in zip(axes, x.shape[1:], strict=True):
        low.append(max(max(-phase.source, 0) for phase in phases))
        ends = [phase.source + max(len(phase.taps), 1) + phase.count - 1 for phase in phases]
        high.append(max(0, max(ends) - size))
    return (*low, *high)


def _emit_phase(
    reader: Reader,
    group: Group,
    made: Numbers,
    views: tuple[View, View],
    phases: tuple[_Phase, ...],
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    *,
    last: bool,
) -> None:
    (x, out), (kernel, stride), inputs = views, sizes, made.weight.shape[3]
    weight = made.weight.reshape(-1, *kernel, inputs)
    for axis, each in enumerate(phases):
        weight = weight.take(each.taps, 1 + axis)
    if not weight.size:  # the kernel is smaller than the stride: nothing but the bias
        weight = np.zeros((len(weight), *(1 for _ in phases), inputs), np.int8)
    steps, out_steps = x.strides[1:], [step * turn for step, turn in zip(out.strides[1:], stride, strict=True)]
    zs, ys, xs = (1, *weight.shape[1:-1])[-3:]
    taps = Taps(zs=zs, ys=ys, xs=xs, y_step=steps[-2], x_step=steps[-1], length=inputs)
    source = replace(x, offset=x.offset + sum(each.source * step for each, step in zip(phases, steps, strict=True)))
    counts = tuple(each.count for each in phases)
    target = replace(
        out,
        shape=(out.shape[0], *counts),
        strides=(1, *out_steps),
        offset=out.offset + sum(each.out * step for each, step in zip(phases, out.strides[1:], strict=True)),
    )
    depth = None
    if len(phases) > 2:
        taps = replace(taps, z_step=steps[0])
        depth = depth_of(counts[0], (steps[0], out_steps[0]))
    extent: Extent = (counts[-2], counts[-1], (*steps[-2:], *out_steps[-2:], 0, 0))
    phase = with_weight(made, np.ascontiguousarray(weight).reshape(len(weight), zs * ys, xs, inputs))
    emit_gemm(reader, group, phase, (source, None, target), taps, extent, None, border=last, depth=depth)
