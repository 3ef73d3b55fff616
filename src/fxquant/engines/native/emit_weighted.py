"""The kernels of weighted ops: their shapes, chosen by the geometry, and their constants, packed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native import depthwise, gemm
from fxquant.engines.native.arithmetic import Numbers, ending, largest
from fxquant.engines.native.depthwise_shape import Depthwise, block_widths
from fxquant.engines.native.emit_scaled import scaled_affine
from fxquant.engines.native.finish import Finish
from fxquant.engines.native.gemm_shape import Depth, Gemm, Taps
from fxquant.engines.native.gemm_tiles import choose_tile, lines_of, split_row, takes_narrow, takes_shared
from fxquant.engines.native.groups import Group, Pads, is_handed_in
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.pack_gemm import pack_affine, pack_listed, pack_weights
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.values import Grid, View, round_up
from fxquant.engines.onednn.pairs import may_overflow

Extent: TypeAlias = tuple[int, int, tuple[int, ...]]  # rows, width, strides as `emit_gemm` says, 0 of nothing
A = TypeVar("A", bound=np.generic)
_L1, _L2 = 20000, 524288  # bytes of weights, and of input rows, that stay near
_LISTED = 2  # vectors of a block whose pairs are chosen: they have to fit in all its channels
_LONGEST = 1.3  # steps of such a block, of those without choosing, beyond which wider sums are faster


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    pads: Pads
    planes: int = 1  # of the kernel, for volumes


def is_depthwise(made: Numbers, geometry: Geometry, grid: Grid | None) -> bool:
    outputs, ky, kx, inputs = made.weight.shape
    small = ky * kx <= 49 and max(geometry.stride) <= 2 and len(geometry.stride) == 2
    return inputs == 1 and geometry.groups == outputs > 1 and geometry.dilation == (1, 1) and grid is not None and small


def emit_depthwise(
    reader: Reader, group: Group, made: Numbers, views: tuple[View, View | None, View], geometry: Geometry
) -> None:
    x, other, out = views
    pairs = not may_overflow(_most(group, x), largest(made.weight))
    machine = reader.machine.for_pairs(pairs)
    channels = round_up(out.shape[0])
    end = ending(reader, group, made, other, out)
    ky, kx = made.weight.shape[1:3]
    stride = (geometry.stride[0], geometry.stride[1])
    rows, width = out.shape[1:]
    tile, down = depthwise.choose_form((ky, kx), stride, (rows, width), end.spec, machine)
    spec = Depthwise(
        kernel=(ky, kx),
        stride=stride,
        channels=channels,
        rows=rows,
        width=width,
        in_row=x.strides[1],
        in_pixel=x.strides[2],
        out_row=out.strides[1],
        out_pixel=out.strides[2],
        other_row=other.strides[1] if other is not None else 0,
        other_pixel=other.strides[2] if other is not None else 0,
        tile=tile,
        down=down,
        finish=end.spec,
        pairs=pairs,
    )
    weight = _padded(made.weight[:, :, :, 0], channels)
    scale, bias = _padded(end.scale, channels), _padded(end.bias, channels)
    params = np.concatenate((end.header.view(np.uint8), depthwise.pack_affine(scale, bias, spec, machine)))
    source = replace(x, offset=x.offset - geometry.pads[0] * x.strides[1] - geometry.pads[1] * x.strides[2])
    constants = (reader.constant(depthwise.pack_weights(weight, spec, machine)), reader.constant(params))
    reader.emit(
        depthwise.emit,
        spec,
        (pointer(source), *constants, pointer(out), pointer(other) if other is not None else constants[1]),
        [x, *((other,) if other is not None else ())],
        out,
        rows=rows,
        grain=tile[0],
        blocks=len(block_widths(channels, machine)),
        label=f"depthwise {ky}x{kx} s{stride[0]} {'x'.join(map(str, out.shape))}{_suffix(group)}",
        macs=out.numel * ky * kx,
    )


def emit_conv(
    reader: Reader, group: Group, made: Numbers, views: tuple[View, View | None, View], geometry: Geometry
) -> None:
    x, other, out = views
    lines, kx, inputs = made.weight.shape[1:]
    row, pixel = x.strides[-2:]
    dy, dx = geometry.dilation[-2:]
    joined = pixel == inputs and dx == 1 and geometry.groups == 1 and kx > 1
    taps = Taps(ys=lines // geometry.planes, xs=kx, y_step=row * dy, x_step=pixel * dx, length=inputs)
    if joined:
        taps = replace(taps, xs=1, x_step=0, length=kx * inputs)
    rows, width = out.shape[-2:]
    sy, sx = geometry.stride[-2:]
    strides = (row * sy, pixel * sx, *out.strides[-2:], *(other.strides[-2:] if other is not None else (0, 0)))
    images = [x, out, *((other,) if other is not None else ())]
    alone = lines * kx == 1 and set(geometry.stride) == {1}
    if alone and rows > 1 and all(v.strides[-2] == v.strides[-1] * v.shape[-1] for v in images):
        rows, width = 1, rows * width
    depth = None
    if len(out.shape) > 3:
        planes, steps = out.shape[1], [v.strides[1] for v in images]
        if rows == alone and all(v.strides[1] == v.strides[2] * v.shape[2] for v in images):
            width *= planes
        else:
            taps = replace(taps, zs=geometry.planes, z_step=steps[0] * geometry.dilation[0])
            steps[0] *= geometry.stride[0]
            depth = depth_of(planes, steps)
    back = sum(map(operator.mul, geometry.pads, x.strides[1:]))
    source = replace(x, offset=x.offset - back)
    emit_gemm(reader, group, made, (source, other, out), taps, (rows, width, strides), geometry, depth=depth)


def depth_of(planes: int, steps: Sequence[int]) -> Depth:
    """Return what `emit_gemm` takes: strides of input, output, and what is added to it, in elements."""
    into, out, other = (*steps, 0)[:3]
    return Depth(planes=planes, rows=1, into=into, out=out, other=other)


def _widen_groups(weight: NDArray[np.int8], groups: int, blocks: list[int]) -> tuple[NDArray[np.int8], list[int]]:
    """(weights that each block of channels has for one run of inputs, where that run begins) of a grouped op."""
    outputs, ky, kx, inputs = weight.shape
    per_group = outputs // groups
    spans = []
    first = 0
    for size in blocks:
        last = min(first + size, outputs) - 1
        spans.append((first // per_group * inputs, (last // per_group + 1) * inputs))
        first += size
    length = max(end - start for start, end in spans)
    total = groups * inputs
    starts = [min(start, total - length) for start, _ in spans]
    wide = np.zeros((sum(blocks), ky, kx, length), np.int8)
    first = 0
    for size, start in zip(blocks, starts, strict=True):
        for channel in range(first, min(first + size, outputs)):
            at = channel // per_group * inputs - start
            wide[channel, :, :, at : at + inputs] = weight[channel]
        first += size
    return wide, starts


def _over(
    taps: Taps, extent: Extent, tile: tuple[tuple[int, ...], int], finish: Finish, machine: Machine, *, near: bool
) -> Gemm:
    """Return the shape of a kernel that goes over an output in such tiles; if weights stay near, row by row.

    One long row is cut into several of a tile's width; short ones become a row of several lines.
    """
    (rows, width, strides), (blocks, pixels) = extent, tile
    in_row, in_pixel, out_row, out_pixel, other_row, other_pixel = strides
    in_line, out_line, other_line = in_row, out_row, other_row
    size = finish.out_bytes
    last, line, lines = width, width, lines_of(rows, width, pixels)
    if lines > 1:
        last, width = ((rows - 1) % lines + 1) * width, lines * width
        rows = -(-rows // lines)
        in_row, out_row, other_row = (lines * each for each in (in_row, out_row, other_row))
    elif rows == 1 and width > pixels:
        pixels, count, last = split_row(width, min(pixels, machine.most_rows(blocks[0])))
        rows, width, last = count + bool(last), pixels, last or pixels
        in_row, out_row, other_row = pixels * in_pixel, pixels * out_pixel, pixels * other_pixel
    lined = lines > 1
    return Gemm(
        taps=taps,
        rows=rows,
        width=width,
        last=last,
        in_row=in_row,
        in_pixel=in_pixel,
        out_row=out_row * size,
        out_pixel=out_pixel * size,
        other_row=other_row * size,
        other_pixel=other_pixel * size,
        line=line if lined else 0,
        in_line=in_line if lined else 0,
        out_line=out_line * size if lined else 0,
        other_line=other_line * size if lined else 0,
        blocks=blocks,
        pixels=pixels,
        chunk=1 if near else max(1, _L2 // max(1, in_row)),
        finish=finish,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Product:
    """A matrix product whose kernel is to be chosen."""

    weight: NDArray[np.int8]
    taps: Taps
    extent: Extent
    groups: int
    finish: Finish
    other: bool
    depth: Depth | None

    def form(self, host: Machine, most: int) -> tuple[Gemm, Machine, NDArray[np.uint8], list[int] | None]:
        """(kernel, machine, weights, offsets of moved blocks) for inputs up to `most`: what is fastest and exact."""
        fit = not may_overflow(most, largest(self.weight))
        machine = host.for_pairs(True)
        if not fit and machine != host:
            spec, weight, offsets = self._shape(machine, pairs=True, listed=True)
            listed = pack_listed(weight, spec, machine, most, _LONGEST)
            if listed is not None:
                return spec, machine, listed, offsets
        machine = host.for_pairs(fit)
        spec, weight, offsets = self._shape(machine, pairs=fit, listed=False)
        return spec, machine, pack_weights(weight, spec, machine), offsets

    def _shape(self, machine: Machine, *, pairs: bool, listed: bool) -> tuple[Gemm, NDArray[np.int8], list[int] | None]:
        """(kernel, weights [channels, taps, length], offsets of moved blocks) for a machine."""
        finish, taps, channels = self.finish, self.taps, round_up(len(self.weight))
        extra = (1.5 if self.other else 0.0) + (0.0 if finish.act is None else 3.0 if finish.words else 5.0)
        widest = _LISTED if listed else 4
        plain = self.groups == 1 and finish.out == "u8" and not listed
        narrow = plain and takes_narrow(len(self.weight), machine)
        shared = plain and finish.other != "f32" and takes_shared(len(self.weight), machine)
        if plain and machine.blends and taps.count > 2 and taps.length > 4 and taps.length % 4 == 1:
            taps = replace(taps, rests=True)
        tile = choose_tile(channels, *self.extent[:2], taps.steps, extra, machine, widest, narrow, shared)
        weight, offsets = _padded(self.weight, channels), None
        if self.groups > 1:
            grain = max(1, 16 // machine.floats)
            tile = (grain,) * (channels // (grain * machine.floats)), machine.most_rows(grain)
            weight, offsets = _widen_groups(self.weight, self.groups, [grain * machine.floats] * len(tile[0]))
            taps = replace(taps, length=weight.shape[3])
        near = taps.steps * 4 * channels * machine.weight_bytes <= _L1
        spec = _over(taps, self.extent, tile, finish, machine, near=near)
        if self.depth is not None:
            depth, size = self.depth, finish.out_bytes
            inside = replace(depth, rows=spec.rows, out=depth.out * size, other=depth.other * size)
            spec = replace(spec, rows=spec.rows * depth.planes, depth=inside)
        spec = replace(
            spec,
            narrow=narrow,
            shared=shared,
            moved=offsets is not None,
            pairs=pairs,
            listed=listed,
        )
        return spec, weight.reshape(channels, taps.count, taps.length), offsets


def emit_gemm(
    reader: Reader,
    group: Group,
    made: Numbers,
    views: tuple[View, View | None, View],
    taps: Taps,
    extent: Extent,
    geometry: Geometry | None,
    border: bool = True,
    place: View | None = None,
    depth: Depth | None = None,
) -> None:
    """Emit a matrix product. `extent`: rows, width, and (row, pixel) strides of input, output and other (elements).

    `place` holds the grid of an input that is on one of its own; `depth` is that of volumes.
    """
    x, other, out = views
    end = ending(reader, group, made, other, out)
    outputs, ky, kx, inputs = made.weight.shape
    channels = round_up(outputs)
    product = _Product(
        weight=made.weight,
        taps=taps,
        extent=extent,
        groups=1 if geometry is None else geometry.groups,
        finish=replace(end.spec, turns=end.spec.landed),
        other=other is not None,
        depth=depth,
    )
    spec, machine, weights, offsets = product.form(reader.machine, _most(group, x))
    packed = reader.constant(weights)
    if place is None:
        scale, bias = _padded(end.scale, channels), _padded(end.bias, channels)
        affine = np.concatenate((end.header.view(np.uint8), pack_affine(scale, bias, spec, machine, offsets)))
        params, reads = reader.constant(affine), [x]
    else:
        scaled = scaled_affine(reader, made, spec, machine, place)
        params, reads = pointer(scaled), [x, scaled]
    kernel = (ky, kx) if taps.zs == 1 else (taps.zs, ky // taps.zs, kx)
    shown = "linear" if group.kind == "linear" else f"conv {'x'.join(map(str, kernel))}"
    reader.emit(
        gemm.emit,
        spec,
        (pointer(x), packed, params, pointer(out), pointer(other) if other is not None else params, packed, packed),
        [*reads, *((other,) if other is not None else ())],
        out,
        rows=spec.rows,
        blocks=len(spec.blocks),
        label=f"{shown} {'x'.join(map(str, x.shape))} -> {outputs}{_suffix(group)}",
        macs=out.numel * ky * kx * inputs,
        single=out.numel == outputs,
        border=border,
    )


def _most(group: Group, x: View) -> int:
    """Return the largest input. Those that kernels make keep to their grid; those that are handed in may not."""
    return 255 if x.grid is None or is_handed_in(group.node.all_input_nodes[0]) else x.grid.high


def _suffix(group: Group) -> str:
    return (" + add" if group.other is not None else "") + (f" {group.act.kind}" if group.act is not None else "")


def _padded(array: NDArray[A], channels: int) -> NDArray[A]:
    """Return an array with zeros for the channels that are not there."""
    made = np.zeros((channels, *array.shape[1:]), array.dtype)
    made[: len(array)] = array
    return made
