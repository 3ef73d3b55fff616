"""Depthwise convolution on bytes with the channels last.

Four neighbouring pixels of the same channels, unpacked into one another, give vectors whose elements hold four taps of
a channel: what `dot` multiplies at once. Such a quad serves all outputs of a tile that have a tap in it, with weights
that are zero where they have none.

    weights   [block][variant][4 vectors][elements][4 taps]

Where a block has fewer channels than a vector has bytes, several tiles beside each other share it (`strips`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.depthwise_down import choose_down, down_variants, emit_down
from fxquant.engines.native.depthwise_shape import Depthwise, Point, Variant, block_widths, strips
from fxquant.engines.native.depthwise_tiles import choose_tile, emit_tile, schedule_of
from fxquant.engines.native.finish import HEADER_BYTES, Finish, affine_rows
from fxquant.engines.native.gemm_shape import LINE
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel
from fxquant.engines.native.vector_order import order, pack_quads

_CHUNK = 16  # columns that are done for all channels, where blocks of them share lines of memory


def choose_form(kernel: Point, stride: Point, extent: Point, finish: Finish, machine: Machine) -> tuple[Point, bool]:
    """(outputs of a tile, whether it goes down its rows) for an output of `extent` rows and columns."""
    down = choose_down(kernel, stride, extent, finish, machine)
    return (choose_tile(kernel, stride, *extent, machine), False) if down is None else (down, True)


def _variants(spec: Depthwise) -> list[Variant]:
    return down_variants(spec) if spec.down else schedule_of(spec.kernel, spec.stride, spec.tile).variants


def emit(name: str, spec: Depthwise, machine: Machine) -> Kernel:
    """Emit it: `x`, packed `weights`, `params` (header, then each block's scales and biases), `out`, `other`."""
    k = Kernel(name, ("x", "weights", "params", "out", "other"), machine.for_pairs(spec.pairs))
    ty, _ = spec.tile

    def rows(y: str) -> None:
        if spec.rows % ty:
            y = k.call("llvm.smin.i64", y, str(spec.rows - ty))
        x = k.step("%x", y, spec.stride[0] * spec.in_row)
        out = k.step("%out", y, spec.out_row)
        other = k.step("%other", y, spec.other_row) if spec.finish.other else ""

        def chunk(low: str) -> None:
            high = k.call("llvm.smin.i64", k.add(low, _CHUNK), str(spec.width))
            _channels(k, spec, (x, out, other), (low, high))

        if spec.in_pixel % LINE and spec.channels > machine.width:
            k.each(0, spec.width, chunk, _CHUNK)
        else:
            _channels(k, spec, (x, out, other), ("0", str(spec.width)))

    k.each("%y0", "%y1", rows, ty)
    return k


def _channels(k: Kernel, spec: Depthwise, bases: tuple[str, str, str], columns: tuple[str, str]) -> None:
    widths = block_widths(spec.channels, k.machine)
    variants = len(_variants(spec))
    done = weights_at = before = 0
    params_at = HEADER_BYTES
    out_bytes, other_bytes = spec.finish.out_bytes, 4 if spec.finish.other == "f32" else 1
    for size in dict.fromkeys(widths):
        count, shared = widths.count(size), strips(spec, size, k.machine)
        weight_size = variants * 4 * size * shared * k.machine.weight_bytes
        param_size = 4 * spec.finish.rows * size * shared
        starts = (done, weights_at, params_at)

        def block(
            index: str,
            size: int = size,
            shared: int = shared,
            weight_size: int = weight_size,
            param_size: int = param_size,
            starts: tuple[int, int, int] = starts,
        ) -> None:
            x = k.step(k.at(bases[0], starts[0]), index, size)
            out = k.step(k.at(bases[1], starts[0] * out_bytes), index, size * out_bytes)
            other = k.step(k.at(bases[2], starts[0] * other_bytes), index, size * other_bytes) if bases[2] else ""
            weights = k.step(k.at("%weights", starts[1]), index, weight_size)
            params = k.step(k.at("%params", starts[2]), index, param_size)
            _columns(k, spec, (x, out, other), (weights, params), (size, shared), columns)

        first = k.call("llvm.smax.i64", k.add("%n0", -before), "0")
        last = k.call("llvm.smin.i64", k.add("%n1", -before), str(count))
        k.each(first, last, block)
        before += count
        done += count * size
        weights_at += count * weight_size
        params_at += count * param_size


def _columns(
    k: Kernel,
    spec: Depthwise,
    bases: tuple[str, str, str],
    fixed: tuple[str, str],
    sizes: tuple[int, int],
    columns: tuple[str, str],
) -> None:
    """All tiles of a row, or of some columns of it. `sizes`: channels of the block, and strips."""
    tx = spec.tile[1] * sizes[1]

    def column(x: str) -> None:
        if spec.width % tx:
            x = k.call("llvm.smin.i64", x, str(spec.width - tx))
        source = k.step(bases[0], x, spec.stride[1] * spec.in_pixel)
        out = k.step(bases[1], x, spec.out_pixel)
        other = k.step(bases[2], x, spec.other_pixel) if bases[2] else ""
        (emit_down if spec.down else emit_tile)(k, spec, (source, out, other), fixed, sizes)

    k.each(*columns, column, tx)


def _blocks(spec: Depthwise, machine: Machine) -> list[NDArray[np.int64]]:
    """Return the channels of each block, as its four vectors have them."""
    found, first = [], 0
    for size in block_widths(spec.channels, machine):
        # floats are stored without packing, so their channels are in order
        natural = spec.finish.out == "f32" or spec.finish.other == "f32"
        assert not natural, "unpacking decides the order of channels"
        found.append(np.tile(first + order(4, size).reshape(4, -1), (1, strips(spec, size, machine))))
        first += size
    return found


def pack_weights(weights: NDArray[np.int8], spec: Depthwise, machine: Machine) -> NDArray[np.uint8]:
    """Integers [channels, ky, kx] as the kernel reads them."""
    variants = _variants(spec)
    found = []
    for channels in _blocks(spec, machine):
        block = np.zeros((len(variants), *channels.shape, 4), np.int8)
        for index, taps in enumerate(variants):
            for place, tap in enumerate(taps):
                if tap is not None:
                    block[index, :, :, place] = weights[:, tap[0], tap[1]][channels]
        found.append(pack_quads(block, machine))
    return np.concatenate(found)


def pack_affine(
    scale: NDArray[np.float64], bias: NDArray[np.float64], spec: Depthwise, machine: Machine
) -> NDArray[np.uint8]:
    """Scales and biases of all channels as the kernel reads them behind the header."""
    rows = affine_rows(scale, bias, spec.finish)
    blocks = [rows[:, channels.reshape(-1)].reshape(-1) for channels in _blocks(spec, machine)]
    return np.concatenate(blocks).view(np.uint8)
