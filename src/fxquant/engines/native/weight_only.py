"""Linear of floats with integer weights, which become floats on their way into registers.

    out[m, n] = act(sum over k of x[m, k] * w[n, k] * scale[n] + bias[n])     a scale for each row of the weight
                act(sum over groups of (sum over k of x[m, k] * w[n, k]) * scale[n, group] + bias[n])  or for each group

A tile is some rows of x times `vectors` of channels. Few rows read a weight once, and its bytes are what costs; many
rows share what it takes to make it a float.

    weights   [block][k][channels of the block] bytes; of four bits [block][k / 2][channels], the even k in the low half
    params    of each block: scales [groups][channels], then biases
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.activations import Act, apply
from fxquant.engines.native.gemm_tiles import even_parts
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.vector import Kernel

_UNROLLED = 64  # products that are written out


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightOnly:
    """The shape of one kernel; strides are in bytes. `group` is how many k have a scale, 0 for all of them."""

    rows: int
    inner: int
    in_row: int
    out_row: int
    blocks: tuple[int, ...]  # vectors of each block of channels
    bits: int
    group: int
    act: Act | None = None

    @property
    def groups(self) -> int:
        return self.inner // self.group if self.group else 1

    @property
    def k_bytes(self) -> int:
        """Bytes of a channel's weights."""
        return self.inner * self.bits // 8


def choose_blocks(channels: int, rows: int, machine: Machine) -> tuple[int, ...]:
    """Vectors of each block: more of them for few rows, so that sums are not waited for.

    Where registers are few, many rows share what it takes to make floats of a vector.
    """
    total = channels // machine.floats
    most = 8 if rows == 1 else 4 if rows <= 3 or machine.registers > 16 else 2
    return (most,) * (total // most) + ((total % most,) if total % most else ())


def pack(
    weight: NDArray[np.int8], scale: NDArray[np.float64], bias: NDArray[np.float64], spec: WeightOnly, machine: Machine
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Weights [channels, inner], scales [channels, groups] and biases as the kernel reads them, channels padded."""
    bytes_: list[NDArray[np.uint8]] = []
    params: list[NDArray[np.float32]] = []
    first = 0
    for vectors in spec.blocks:
        some = slice(first, first + vectors * machine.floats)
        columns = np.ascontiguousarray(weight[some].T).view(np.uint8)
        if spec.bits == 4:
            columns = (columns[0::2] & np.uint8(15)) | (columns[1::2] << np.uint8(4))
        bytes_.append(columns.reshape(-1))
        params += [scale[some].T.reshape(-1).astype(np.float32), bias[some].astype(np.float32)]
        first += vectors * machine.floats
    return np.concatenate(bytes_), np.concatenate(params)


def emit(name: str, spec: WeightOnly, machine: Machine) -> Kernel:
    """Return the kernel: `x`, `weights`, `params`, `out`. Work is split by blocks."""
    k = Kernel(name, ("x", "weights", "params", "out"), machine)
    done = weights_at = params_at = out_at = 0
    for vectors in dict.fromkeys(spec.blocks):
        count = spec.blocks.count(vectors)
        channels = vectors * machine.floats
        sizes = (channels * spec.k_bytes, 4 * channels * (spec.groups + 1), 4 * channels)
        starts = (weights_at, params_at, out_at)

        def block(
            index: str,
            vectors: int = vectors,
            first: int = done,
            sizes: tuple[int, ...] = sizes,
            starts: tuple[int, ...] = starts,
        ) -> None:
            place = k.add(index, -first)
            bases = zip(("%weights", "%params", "%out"), starts, sizes, strict=True)
            weights, params, out = (k.step(k.at(base, start), place, size) for base, start, size in bases)
            _block(k, spec, vectors, (weights, params, out))

        low = k.call("llvm.smax.i64", "%n0", str(done))
        k.each(low, k.call("llvm.smin.i64", "%n1", str(done + count)), block)
        done += count
        weights_at, params_at, out_at = (
            at + count * size for at, size in zip((weights_at, params_at, out_at), sizes, strict=True)
        )
    return k


def _block(k: Kernel, spec: WeightOnly, vectors: int, places: tuple[str, str, str]) -> None:
    weights, params, out = places
    most = max(1, min(spec.rows, (k.machine.registers - vectors - 2) // vectors))

    def rows(first: str, height: int) -> None:
        x = k.step("%x", first, spec.in_row)
        _tile(k, spec, vectors, height, (x, weights, params, k.step(out, first, spec.out_row)))

    height, count, _ = even_parts(spec.rows, most)
    k.each(0, count * height, lambda first: rows(first, height), height)
    k.each(count * height, spec.rows, lambda first: rows(first, height - 1), height - 1)


def _tile(k: Kernel, spec: WeightOnly, vectors: int, height: int, places: tuple[str, str, str, str]) -> None:
    machine, (x, weights, params, out) = k.machine, places
    width, type_ = machine.width, f"<{machine.floats} x float>"
    carries = [Carry(type=type_, start="zeroinitializer")] * (height * vectors)
    scale_size = vectors * width
    biases = _vectors(k, k.at(params, spec.groups * scale_size), vectors)
    addresses = [k.at(out, row * spec.out_row + v * width) for row in range(height) for v in range(vectors)]
    if spec.group:
        for place, address in enumerate(addresses):
            k.store(type_, biases[place % vectors], address)

        def group(index: str) -> None:
            at = (k.step(x, index, 4 * spec.group), k.step(weights, index, _row_bytes(spec, vectors, k) * spec.group))
            sums = _sum(k, spec, vectors, (height, spec.group), at, carries)
            scales = _vectors(k, k.step(params, index, scale_size), vectors)
            for place, address in enumerate(addresses):
                k.store(type_, k.fma(sums[place], scales[place % vectors], k.load(type_, address), width), address)

        k.each(0, spec.groups, group)
        values = [k.load(type_, address) for address in addresses] if spec.act is not None else []
    else:
        sums = _sum(k, spec, vectors, (height, spec.inner), (x, weights), carries)
        scales = _vectors(k, params, vectors)
        values = [k.fma(total, scales[p % vectors], biases[p % vectors], width) for p, total in enumerate(sums)]
    for address, value in zip(addresses, values, strict=bool(values)):
        k.store(type_, value if spec.act is None else apply(k, spec.act, value, width), address)


def _vectors(k: Kernel, address: str, vectors: int) -> list[str]:
    width = k.machine.width
    return [k.load(f"<{k.machine.floats} x float>", k.at(address, width * v), 4) for v in range(vectors)]


def _row_bytes(spec: WeightOnly, vectors: int, k: Kernel) -> int:
    """Bytes of weights for one k, as a share of what holds two of four bits: such k come in pairs."""
    assert spec.bits == 8 or spec.group % 2 == 0
    return vectors * k.machine.floats * spec.bits // 8


def _sum(
    k: Kernel,
    spec: WeightOnly,
    vectors: int,
    extent: tuple[int, int],
    places: tuple[str, str],
    carries: list[Carry],
) -> list[str]:
    """Return the sums with the products of a run of k added. `extent`: rows of the tile, length of the run."""
    (height, length), (x, weights) = extent, places
    n, width = k.machine.floats, k.machine.width
    per_load = 8 // spec.bits  # k that a byte holds
    size = vectors * n

    def one(x_at: str, loaded: list[str], sums: list[str]) -> list[str]:
        sums = list(sums)
        for row in range(height):
            factor = k.spread(k.load("float", k.at(x_at, row * spec.in_row), 4), width)
            for v in range(vectors):
                place = row * vectors + v
                sums[place] = k.fma(factor, loaded[v], sums[place], width)
        return sums

    def turn(x_at: str, weights_at: str, sums: list[str]) -> list[str]:
        raw = [k.load(f"<{n} x i8>", k.at(weights_at, n * v)) for v in range(vectors)]
        wide = [k.value(f"sext <{n} x i8> {each} to <{n} x i32>") for each in raw]
        for half in range(per_load):
            loaded = [k.to_float(_half(k, each, half, spec.bits), width) for each in wide]
            sums = one(k.at(x_at, 4 * half), loaded, sums)
        return sums

    turns = length // per_load
    unroll = max(1, min(4, _UNROLLED // (height * vectors * per_load)))

    def body(index: str, sums: list[str], count: int = unroll) -> list[str]:
        x_at, weights_at = k.step(x, index, 4 * per_load), k.step(weights, index, size)
        for place in range(count):
            sums = turn(k.at(x_at, 4 * per_load * place), k.at(weights_at, size * place), sums)
        return sums

    full = turns // unroll * unroll
    sums = k.loop(0, full, unroll, body, carries)
    for place in range(full, turns):
        sums = body(str(place), sums, 1)
    return sums


def _half(k: Kernel, x: str, half: int, bits: int) -> str:
    """Integers of int32 vectors; of four bits the low or the high half of their bytes."""
    n = k.machine.floats
    if bits == 8:
        return x
    if half:
        return k.value(f"ashr <{n} x i32> {x}, splat (i32 4)")
    return k.value(f"ashr <{n} x i32> {k.value(f'shl <{n} x i32> {x}, splat (i32 28)')}, splat (i32 28)")
