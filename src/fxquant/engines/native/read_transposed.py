"""Transposed convolution: one convolution for each phase of its stride.

Output s q + r - padding (r from 0 to s - 1) has the taps r, r + s, r + 2 s, ... of the kernel, on the inputs q, q - 1,
q - 2, ...: a plain convolution with stride 1 whose results lie s pixels apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fxquant.engines.native.arithmetic import Numbers, numbers, with_weight
from fxquant.engines.native.emit_weighted import emit_gemm
from fxquant.engines.native.gemm_shape import Taps
from fxquant.engines.native.groups import TRANSPOSED, Group, as_tuple
from fxquant.engines.native.layouts import as_image, tall, with_height
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.shapes import Unread
from fxquant.engines.native.values import Grid, View, drop_height, image
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
    stride = (1, 1, *as_tuple(argument(group.node, op, 3, 1), count))[-2:]
    padding = (0, 0, *as_tuple(argument(group.node, op, 4, 0), count))[-2:]
    dilation = as_tuple(argument(group.node, op, 7, 1), count)
    if argument(group.node, op, 6, 1) != 1 or set(dilation) != {1}:
        raise Unread("groups or dilation of a transposed convolution")
    made = numbers(reader, group, x.grid, axis=1)
    end = group.nodes[-1]
    shape = reader.shape(end)
    full = tall(shape)
    kernel = made.weight.shape[1:3]
    ys, xs = (_phases(full[axis + 1], kernel[axis], stride[axis], padding[axis]) for axis in (0, 1))
    x = as_image(reader, with_height(x), _pads(ys, xs, with_height(x)))
    pad = reader.border(end) if grid is not None else None
    out = image("f32" if grid is None else "u8", full, pad or (0, 0), grid, x.level + x.level % 2)
    pairs = [(y, x_) for y in ys for x_ in xs]
    for index, phases in enumerate(pairs):
        _emit_phase(reader, group, made, (x, out), phases, stride, last=index == len(pairs) - 1)
    return out if len(shape) == 3 else drop_height(out)


def _pads(ys: list[_Phase], xs: list[_Phase], x: View) -> tuple[int, int, int, int]:
    """Tell how far the taps reach over the edges of the input."""
    low, high = [], []
    for phases, size in ((ys, x.shape[1]), (xs, x.shape[2])):
        low.append(max(max(-phase.source, 0) for phase in phases))
        ends = [phase.source + max(len(phase.taps), 1) + phase.count - 1 for phase in phases]
        high.append(max(0, max(ends) - size))
    return low[0], low[1], high[0], high[1]


def _emit_phase(
    reader: Reader,
    group: Group,
    made: Numbers,
    views: tuple[View, View],
    phases: tuple[_Phase, _Phase],
    stride: tuple[int, ...],
    *,
    last: bool,
) -> None:
    x, out = views
    y, x_ = phases
    weight = made.weight[:, list(y.taps)][:, :, list(x_.taps)]
    if not y.taps or not x_.taps:  # the kernel is smaller than the stride: nothing but the bias
        weight = np.zeros((len(made.weight), 1, 1, made.weight.shape[3]), np.int8)
    ky, kx, inputs = weight.shape[1:]
    (_, row, pixel), (_, out_row, out_pixel) = x.strides, out.strides
    taps = Taps(ys=ky, xs=kx, y_step=row, x_step=pixel, length=inputs)
    source = replace(x, offset=x.offset + y.source * row + x_.source * pixel)
    target = replace(
        out,
        shape=(out.shape[0], y.count, x_.count),
        strides=(1, stride[0] * out_row, stride[1] * out_pixel),
        offset=out.offset + y.out * out_row + x_.out * out_pixel,
    )
    strides = (row, pixel, stride[0] * out_row, stride[1] * out_pixel, 0, 0)
    phase = with_weight(made, np.ascontiguousarray(weight))
    emit_gemm(reader, group, phase, (source, None, target), taps, (y.count, x_.count, strides), None, border=last)
