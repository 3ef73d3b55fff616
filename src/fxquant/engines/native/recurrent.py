"""A recurrent layer over all its time steps: one call, one direction.

    q = quantize(h)                            u8; on a fixed grid, or on the range of h in this step
    r = sum(q * w) * scale + bias              int32 sums; or float sums of h itself, with int8 weights
    h, c = gates(x, r, c)                      in float, for as many units at once as a vector has elements

    weights   [block][ceil(hidden / 4)][gate][unit][4]     int8 sums
              [block][hidden][gate][unit]                  float sums
    params    header (1 / scale and zero point of a fixed grid, sixteen times each), then for each block and gate:
              scales, biases, and the sums of the weights, which take back what the input was moved by

The kernel is `void @name(ptr x, weights, params, first, cell, bytes, out, i64 steps, rows, x_step, out_step)`: `first`
is the state before the first step, `cell` the other state of an LSTM, which is written over. The last two, in bytes,
may be negative. `bytes` is memory for the quantized state of all rows, or for weights as floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.activations import Act, apply, exp
from fxquant.engines.native.ir import Carry
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.values import round_up
from fxquant.engines.native.vector import Kernel
from fxquant.engines.native.vector_order import pack_quads

Kind = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_HEADER = 128
WIDE_ROWS = 4  # from so many rows on, weights of float sums become floats before the first step
_FAR = 40.0  # powers of e beyond which a product of two is no float any more, and nothing changes in a sum with 1
_SIGMOID, _TANH = Act(kind="sigmoid"), Act(kind="tanh")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The shape of one kernel. `low` and `high` bound the bytes of a fixed grid, `eps` the scale of one found."""

    kind: Kind
    hidden: int
    grid: Literal["fixed", "found", "none"]
    low: int = 0
    high: int = 255
    eps: float = 0.0
    pairs: bool = False  # whether sums of two products fit int16

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def row(self) -> int:
        """Bytes of a quantized row."""
        return round_up(self.hidden, 64)

    def scratch(self, rows: int, weights: int) -> int:
        """Return how many bytes the kernel writes to for itself; `weights` is the size of the packed weights."""
        if self.grid == "none":
            return 4 * weights if rows >= WIDE_ROWS else 0
        return rows * self.row

    def depth(self) -> int:
        """Turns of the loop over the state: four bytes each, or one float."""
        return self.hidden if self.grid == "none" else -(-self.hidden // 4)


def emit(name: str, spec: Cell, machine: Machine) -> Kernel:
    """Return the kernel for one machine."""
    machine = machine.for_pairs(spec.pairs)
    k = Kernel(name, ("x", "weights", "params", "first", "cell", "bytes", "out"), machine)
    k.lines[0] = k.lines[0].replace("internal ", "")
    if spec.grid == "none":
        k.when(k.value(f"icmp sge i64 %y1, {WIDE_ROWS}"), lambda: _widen(k, spec))
    ends = [k.value(f"alloca <{machine.floats} x float>, align {machine.width}") for _ in range(2)]

    def step(index: str, before: list[str]) -> list[str]:
        x = k.at("%x", k.value(f"mul nsw i64 {index}, %n0"))
        out = k.at("%out", k.value(f"mul nsw i64 {index}, %n1"))
        found = _quantize(k, spec, before[0], ends) if spec.grid != "none" else None
        blocks = spec.hidden // machine.floats
        k.each(0, blocks, lambda block: _block(k, spec, block, machine.floats, (x, before[0], out), found))
        if spec.hidden % machine.floats:
            _block(k, spec, str(blocks), spec.hidden % machine.floats, (x, before[0], out), found)
        return [out]

    k.loop("0", "%y0", 1, step, [Carry(type="ptr", start="%first")])
    return k


def _widen(k: Kernel, spec: Cell) -> None:
    """Write all weights as floats, for tiles of many rows: to make them of bytes at every step takes longer."""
    n = k.machine.floats
    vectors = -(-spec.hidden // n) * spec.depth() * spec.gates

    def one(index: str) -> None:
        narrow = k.load(f"<{n} x i8>", k.step("%weights", index, n))
        wide = k.value(f"sitofp <{n} x i8> {narrow} to <{n} x float>")
        k.store(f"<{n} x float>", wide, k.step("%bytes", index, 4 * n))

    k.each(0, vectors, one)


def _over_state(k: Kernel, spec: Cell, visit: Callable[[str, str, int], None]) -> None:
    """Call `visit(row, first unit, how many units)` for every vector of the state of all rows."""
    n = k.machine.floats
    full = spec.hidden - spec.hidden % n

    def row(index: str) -> None:
        k.each(0, full, lambda unit: visit(index, unit, n), n)
        if full < spec.hidden:
            visit(index, str(full), spec.hidden - full)

    k.each("0", "%y1", row)


def _quantize(k: Kernel, spec: Cell, state: str, ends: list[str]) -> tuple[str, str]:
    """Write the bytes of a state; (scale, zero point) of a grid that was found, in all elements."""
    n, width = k.machine.floats, k.machine.width
    if spec.grid == "fixed":
        inverse = k.load(f"<{n} x float>", "%params", 4)
        zero = k.value(f"fptosi <{n} x float> {k.load(f'<{n} x float>', k.at('%params', 64), 4)} to <{n} x i32>")
        scale = zero_float = ""
    else:
        scale, zero = _range(k, spec, state, ends)
        inverse = k.binary("fdiv", k.splat(1.0), scale, width)
        zero_float = k.to_float(zero, width)

    def visit(row: str, unit: str, count: int) -> None:
        place = k.step(k.step(state, row, 4 * spec.hidden), unit, 4)
        x = k.load_part("float", n, count, place)
        steps = k.round(k.binary("fmul", x, inverse, width), width)
        packed = k.narrow([k.value(f"add <{n} x i32> {steps}, {zero}")], width)
        packed = k.clamp_bytes(packed, spec.low, spec.high, n)
        k.store_part("i8", n, count, packed, k.step(k.step("%bytes", row, spec.row), unit, 1))

    _over_state(k, spec, visit)
    return scale, zero_float


def _range(k: Kernel, spec: Cell, state: str, ends: list[str]) -> tuple[str, str]:
    """(scale, zero point as int32) for the range of a state, with zero in it."""
    n, width = k.machine.floats, k.machine.width
    type_ = f"<{n} x float>"
    lows, highs = ends
    for place in ends:
        k.store(type_, "zeroinitializer", place, width)

    def visit(row: str, unit: str, count: int) -> None:
        x = k.load_part("float", n, count, k.step(k.step(state, row, 4 * spec.hidden), unit, 4))
        k.store(type_, k.least(x, k.load(type_, lows, width), width), lows, width)
        k.store(type_, k.largest(x, k.load(type_, highs, width), width), highs, width)

    _over_state(k, spec, visit)
    down = k.binary("fsub", k.splat(-0.0), k.load(type_, lows, width), width)
    below, above = (k.call(f"llvm.vector.reduce.fmax.v{n}f32", x) for x in (down, k.load(type_, highs, width)))
    low, high = k.spread(below, width), k.spread(above, width)
    span = k.binary("fdiv", k.binary("fadd", low, high, width), k.splat(float(spec.high - spec.low)), width)
    scale = k.largest(span, k.splat(spec.eps), width)
    return scale, k.round(k.binary("fdiv", low, scale, width), width)


@dataclass(frozen=True, slots=True)
class _Units:
    """One block of units: where its weights and params are, and how many units it has."""

    index: str
    count: int
    weights: str
    params: str


def _block(
    k: Kernel, spec: Cell, index: str, count: int, places: tuple[str, str, str], found: tuple[str, str] | None
) -> None:
    machine, gates = k.machine, spec.gates
    size = machine.width * machine.weight_bytes if spec.grid != "none" else machine.floats
    units = _Units(
        index,
        count,
        k.step("%weights", index, spec.depth() * gates * size),
        k.step(k.at("%params", _HEADER), index, 3 * gates * machine.width),
    )
    done = "0"
    # few rows at once, so that few are left over; float weights come from far, so that many at once pay
    most = machine.most_rows(gates)
    if spec.grid == "none" and most < WIDE_ROWS:
        most = machine.most_rows(-(-gates // 2))
    for rows in (4, 2, 1) if spec.grid != "none" else (8, 4, 3, 2, 1):
        if rows <= most:
            end = k.add(done, k.mul(k.value(f"sdiv i64 {k.value(f'sub i64 %y1, {done}')}, {rows}"), rows))
            k.each(done, end, lambda row, rows=rows: _tile(k, spec, units, row, rows, places, found), rows)  # type: ignore[misc]
            done = end


def _tile(
    k: Kernel,
    spec: Cell,
    units: _Units,
    row: str,
    rows: int,
    places: tuple[str, str, str],
    found: tuple[str, str] | None,
) -> None:
    x, before, out = places
    sums = _float_sums(k, spec, units, k.step(before, row, 4 * spec.hidden), rows)
    if spec.grid != "none":
        sums = _byte_sums(k, spec, units, k.step("%bytes", row, spec.row), rows)
    gates, width, n = spec.gates, k.machine.width, k.machine.floats
    scales, biases, totals = (
        [k.load(f"<{n} x float>", k.at(units.params, (part * gates + g) * width), 4) for g in range(gates)]
        for part in range(3)
    )
    if found is not None and spec.grid == "found":
        moved = k.binary("fsub", k.splat(float(k.machine.shift)), found[1], width)
        taken = [k.binary("fmul", total, moved, width) for total in totals]
        biases = [k.binary("fmul", total, scale, width) for total, scale in zip(taken, scales, strict=True)]
    state = (x, before, out)
    for place in range(rows):
        mine = sums[place * gates : (place + 1) * gates]
        _finish(k, spec, units, k.add(row, place), mine, (scales, biases), state, found)


def _byte_sums(k: Kernel, spec: Cell, units: _Units, x: str, rows: int) -> list[str]:
    """Sums as floats, of quantized states."""
    machine, gates = k.machine, spec.gates
    size = machine.width * machine.weight_bytes
    carries = [Carry(type=f"<{machine.floats} x i32>", start="zeroinitializer")] * (rows * gates)

    def body(quad: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        at = k.step(units.weights, quad, gates * size)
        loaded = [k.weights(k.at(at, g * size), machine.width) for g in range(gates)]
        for place in range(rows):
            four = k.quad(k.at(k.step(x, quad, 4), place * spec.row), k.machine.width)
            for g in range(gates):
                sums[place * gates + g] = k.dot(sums[place * gates + g], four, loaded[g], machine.width)
        return sums

    return [k.to_float(total, machine.width) for total in k.loop(0, spec.depth(), 1, body, carries)]


def _float_sums(k: Kernel, spec: Cell, units: _Units, x: str, rows: int) -> list[str]:
    """Sums of float states; where registers are few, those of half of the gates after those of the others."""
    if spec.grid != "none":
        return []
    half = -(-spec.gates // 2)
    parts = [range(spec.gates)] if rows <= k.machine.most_rows(spec.gates) else [range(half), range(half, spec.gates)]
    found = [_gate_sums(k, spec, units, x, rows, part) for part in parts]
    return [total for row in range(rows) for part in found for total in part[row]]


def _gate_sums(k: Kernel, spec: Cell, units: _Units, x: str, rows: int, gates: range) -> list[list[str]]:
    """Sums of some gates, for each row."""
    n, count = k.machine.floats, len(gates)
    carries = [Carry(type=f"<{n} x float>", start="zeroinitializer")] * (rows * count)
    wide = k.step("%bytes", units.index, spec.depth() * spec.gates * 4 * n)

    def body(index: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        if rows >= WIDE_ROWS:
            at = k.step(wide, index, spec.gates * 4 * n)
            weights = [k.load(f"<{n} x float>", k.at(at, 4 * g * n)) for g in gates]
        else:
            at = k.step(units.weights, index, spec.gates * n)
            narrow = [k.load(f"<{n} x i8>", k.at(at, g * n)) for g in gates]
            weights = [k.value(f"sitofp <{n} x i8> {each} to <{n} x float>") for each in narrow]
        for place in range(rows):
            one = k.load("float", k.at(k.step(x, index, 4), 4 * place * spec.hidden), 4)
            spread = k.spread(one, k.machine.width)
            for g, weight in enumerate(weights):
                sums[place * count + g] = k.fma(spread, weight, sums[place * count + g], k.machine.width)
        return sums

    made = k.loop(0, spec.depth(), 1, body, carries)
    return [made[place * count : (place + 1) * count] for place in range(rows)]


def _finish(
    k: Kernel,
    spec: Cell,
    units: _Units,
    row: str,
    sums: list[str],
    affine: tuple[list[str], list[str]],
    places: tuple[str, str, str],
    found: tuple[str, str] | None,
) -> None:
    """Compute the gates of one row, and its new state."""
    width, n, gates = k.machine.width, k.machine.floats, spec.gates
    recurrent = []
    for g, (total, scale, bias) in enumerate(zip(sums, *affine, strict=True)):
        if spec.grid == "found" and found is not None:
            value = k.fma(total, scale, bias, width)
            plain = k.load(f"<{n} x float>", k.at(units.params, (gates + g) * width), 4)
            recurrent.append(k.fma(value, found[0], plain, width))
        else:
            recurrent.append(k.fma(total, scale, bias, width))
    x, before, out = places
    unit = k.mul(units.index, 4 * n)

    def load(base: str) -> str:
        return k.load_part("float", n, units.count, base)

    inputs = [
        load(k.at(k.step(x, row, 4 * gates * spec.hidden), k.add(unit, 4 * g * spec.hidden))) for g in range(gates)
    ]
    own = k.at(k.step("%cell", row, 4 * spec.hidden), unit)
    old = k.at(k.step(before, row, 4 * spec.hidden), unit)
    if spec.kind == "lstm":
        h, c = _lstm(k, [k.binary("fadd", a, b, width) for a, b in zip(inputs, recurrent, strict=True)], load(own))
        k.store_part("float", n, units.count, c, own)
    elif spec.kind == "gru":
        h = _gru(k, inputs, recurrent, load(old))
    else:
        total = k.binary("fadd", inputs[0], recurrent[0], width)
        h = apply(k, Act(kind=spec.kind.removeprefix("rnn_")), total, width)
    k.store_part("float", n, units.count, h, k.at(k.step(out, row, 4 * spec.hidden), unit))


def _lstm(k: Kernel, gates: list[str], c: str) -> tuple[str, str]:
    width = k.machine.width
    c = k.fma(apply(k, _SIGMOID, gates[1], width), c, _gated(k, gates[0], gates[2]), width)
    return _gated(k, gates[3], c), c


def _gated(k: Kernel, gate: str, x: str) -> str:
    """sigmoid(gate) * tanh(x) with one division: (u - 1) / ((1 + t) (u + 1)) for t = exp(-gate), u = exp(2 x)"""
    width, one = k.machine.width, k.splat(1.0)
    powers = (k.binary("fmul", gate, k.splat(-1.0), width), k.binary("fmul", x, k.splat(2.0), width))
    t, u = (exp(k, k.least(k.splat(_FAR), power, width), width) for power in powers)
    below = k.binary("fmul", k.binary("fadd", t, one, width), k.binary("fadd", u, one, width), width)
    return k.binary("fdiv", k.binary("fsub", u, one, width), below, width)


def _gru(k: Kernel, x: list[str], recurrent: list[str], h: str) -> str:
    width = k.machine.width
    r, z = (apply(k, _SIGMOID, k.binary("fadd", x[g], recurrent[g], width), width) for g in range(2))
    n = apply(k, _TANH, k.fma(r, recurrent[2], x[2], width), width)
    return k.fma(z, k.binary("fsub", h, n, width), n, width)


def pack(
    weight: NDArray[np.int8], scale: NDArray[np.float64], bias: NDArray[np.float64], spec: Cell, machine: Machine
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(weights, params behind the header) from [gates * hidden, hidden] integers, with scales and biases per row."""
    gates, n, machine = spec.gates, machine.floats, machine.for_pairs(spec.pairs)
    blocks = -(-spec.hidden // n)
    shape = (gates, blocks, n)
    wide = np.zeros((gates, blocks * n, 4 * -(-spec.hidden // 4)), np.int8)
    wide[:, : spec.hidden, : spec.hidden] = weight.reshape(gates, spec.hidden, spec.hidden)
    quads = wide.reshape(*shape, -1, 4).transpose(1, 3, 0, 2, 4)  # block, quad, gate, unit, 4
    if spec.grid == "none":
        whole = quads.transpose(0, 1, 4, 2, 3).reshape(blocks, -1, gates, n)[:, : spec.hidden]
        packed = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
    else:
        packed = pack_quads(quads, machine)
    rows = np.zeros((3, gates, blocks * n))
    for part, values in enumerate((scale, bias, weight.astype(np.int64).sum(1))):
        rows[part, :, : spec.hidden] = np.broadcast_to(values, (gates * spec.hidden,)).reshape(gates, spec.hidden)
    params = rows.reshape(3, *shape).transpose(2, 0, 1, 3)
    return packed, np.ascontiguousarray(params).astype(np.float32).reshape(-1)
