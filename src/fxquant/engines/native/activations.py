"""Activations: as vector code on floats, and as tables that give quantized outputs at once.

A table cuts the input into 16 or 32 equal pieces and has a quadratic for each, in steps of the output grid:

    m = max(x, low)    i = round((min(m, high) - low) / h)    q = c0[i] + m (c1[i] + m c2[i])

The last piece goes on to the right, so it is made straight there: what comes after `high` is saturated or linear.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fxquant.engines.native.lookup import lookup
from fxquant.engines.native.vector import MAGIC, Kernel

Array = NDArray[np.float64]
_MOST_PIECES = 32
_ROW = 4 * _MOST_PIECES
TABLE_BYTES = 3 * _ROW + 4 * 64  # c0, c1, c2, then low, high, 1/h and the offset of the index, each sixteen times
_CLOSE = 0.2  # steps that a table may be off
_STRAIGHT = 0.04  # steps off a line that do not count


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """A unary function by kind, with its settings."""

    kind: str
    args: tuple[float, ...] = ()


def _on_tensors(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    return lambda x: function(torch.from_numpy(np.asarray(x, np.float64))).numpy()


def formula(act: Act) -> Callable[[Array], Array]:
    """Return the function on arrays of doubles."""
    nn = torch.nn.functional
    made: dict[str, Callable[..., torch.Tensor]] = {
        "relu": torch.relu,
        "clamp": torch.clamp,
        "leaky_relu": nn.leaky_relu,
        "elu": nn.elu,
        "sigmoid": torch.sigmoid,
        "hardsigmoid": nn.hardsigmoid,
        "tanh": torch.tanh,
        "silu": nn.silu,
        "hardswish": nn.hardswish,
        "mish": nn.mish,
        "gelu": nn.gelu,
        "gelu_tanh": lambda x: nn.gelu(x, approximate="tanh"),
    }
    return _on_tensors(lambda x: made[act.kind](x, *act.args))


SMOOTH = frozenset(("sigmoid", "tanh", "silu", "mish", "gelu", "gelu_tanh", "elu"))  # those that tables are for
KINDS = SMOOTH | {"relu", "clamp", "leaky_relu", "hardsigmoid", "hardswish"}
FLOAT_KINDS = frozenset(("rsqrt", "sqrt", "exp", "neg", "abs", "reciprocal"))  # no kinds of the op table


@functools.lru_cache(maxsize=512)
def fit(act: Act, scale: float, zero_point: int, pieces: int) -> NDArray[np.float32] | None:
    """Return the table for an output grid; None if so many quadratics are not close enough."""
    function = formula(act)

    def steps(x: Array) -> Array:
        made: Array = function(x) / scale + zero_point
        return made

    grid = np.linspace(-40.0, 40.0, 2001)
    y = steps(grid)
    if not np.isfinite(y).all():
        return None
    low = float(grid[max(int(np.argmax(np.abs(y - y[0]) > _STRAIGHT)) - 1, 0)])
    straight = _straight_from(grid, y)
    if not low < straight:
        return None
    h, first = _pieces(low, straight, pieces)
    low, high = first * h, (first + pieces - 1) * h
    centres = low + h * np.arange(pieces, dtype=np.float64)
    table = np.zeros((3, _MOST_PIECES))
    table[:, :pieces] = _quadratics(steps, centres, h, low)
    table[:, pieces - 1] = _line(steps, straight)
    rows = [*table, *(np.full(16, value) for value in (low, high, 1 / h, MAGIC - first))]
    packed = np.concatenate(rows).astype(np.float32)
    return packed if _error(packed, grid, y) < _CLOSE else None


def _quadratics(steps: Callable[[Array], Array], centres: Array, h: float, low: float) -> Array:
    """c0, c1, c2 for each piece: least squares at points that are dense at its ends."""
    u = np.cos(np.linspace(0, np.pi, 17))
    solve = np.linalg.pinv(np.stack((np.ones_like(u), u, u * u), axis=1))
    half = 0.5 * h
    points = np.maximum(centres[:, None] + half * u, low)
    a, b, c = solve @ steps(points.reshape(-1)).reshape(points.shape).T  # in u = (x - centre) / half
    return np.stack(
        (a - b * centres / half + c * (centres / half) ** 2, b / half - 2 * c * centres / half**2, c / half**2)
    )


def _line(steps: Callable[[Array], Array], straight: float) -> Array:
    """The same for what comes after `straight`."""
    x = np.array([straight, straight + 40.0])
    y = steps(x)
    slope = (y[1] - y[0]) / (x[1] - x[0])
    return np.array([y[0] - slope * x[0], slope, 0.0])


def _pieces(low: float, straight: float, pieces: int) -> tuple[float, int]:
    """(size of a piece, centre of the first in such sizes): from `low`, so that the last begins before `straight`.

    Centres are whole numbers of sizes: beside MAGIC there is no room for a fraction.
    """
    h = (straight - low) / (pieces - 1.5)
    while True:
        first = math.floor(low / h)
        if (first + pieces - 1.5) * h >= straight:
            return h, first
        h *= 1.003


def _straight_from(grid: Array, y: Array) -> float:
    """Tell where the function, in steps, is above the grid or on a line for good."""
    above = y >= 255.6
    slope = (y[-1] - y[-2]) / (grid[-1] - grid[-2])
    line = np.abs(y - (y[-1] + slope * (grid - grid[-1]))) < _STRAIGHT
    fine = above | line
    bent = np.flatnonzero(~fine)
    return float(grid[min(int(bent[-1]) + 1, len(grid) - 1)]) if len(bent) else float(grid[1])


def _error(packed: NDArray[np.float32], grid: Array, y: Array) -> float:
    c0, c1, c2 = packed[: 3 * _MOST_PIECES].reshape(3, _MOST_PIECES)
    low, high, inverse, offset = packed[3 * _MOST_PIECES :].reshape(4, 16)
    m = np.maximum(grid.astype(np.float32), low[0])
    index = np.rint(np.minimum(m, high[0]).astype(np.float64) * inverse[0] + (offset[0] - MAGIC)).astype(int)
    index = index.clip(0, _MOST_PIECES - 1)
    found = c0[index] + m * (c1[index] + m * c2[index])
    return float(np.abs(np.clip(found, 0, 255) - np.clip(y, 0, 255)).max())


def apply_table(k: Kernel, x: str, table: str, width: int) -> str:
    """Return the output in steps, from the packed table at an address."""
    n = width // 4

    def row(index: int) -> str:
        return k.load(f"<{n} x float>", k.at(table, 3 * _ROW + 64 * index), width)

    m = k.largest(x, row(0), width)
    place = k.fma(k.least(m, row(1), width), row(2), row(3), width)
    index = k.value(f"bitcast <{n} x float> {place} to <{n} x i32>")
    c0, c1, c2 = (lookup(k, k.at(table, _ROW * j), index, width) for j in range(3))
    return k.fma(k.fma(c2, m, c1, width), m, c0, width)


_EXP = (1.0, 1.0, 0.5, 1 / 6, 1 / 24, 1 / 120, 1 / 720)
_EXP2 = (1.0, 0.6931469670622858, 0.24022119724099472, 0.05550713277541076, 0.009675541324025061, 0.0013276470685488068)
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)  # Abramowitz and Stegun 7.1.26


def exp(k: Kernel, x: str, width: int) -> str:
    """e**x to a few units in the last place; 0 far left, finite far right."""
    x = k.least(k.splat(88.0), k.largest(k.splat(-87.0), x, width), width)
    whole = k.round(k.binary("fmul", x, k.splat(1 / math.log(2)), width), width)
    steps = k.to_float(whole, width)
    rest = k.fma(steps, k.splat(-0.693145751953125), x, width)
    rest = k.fma(steps, k.splat(-1.428606765330187e-06), rest, width)
    return _series_times_power(k, _EXP, rest, whole, width)


def exp2(k: Kernel, x: str, width: int) -> str:
    """2**x of numbers up to 0, to two units in the last place; next to nothing far left."""
    x = k.largest(k.splat(-126.0), x, width)
    whole = k.round(x, width)
    rest = k.binary("fsub", x, k.to_float(whole, width), width)
    return _series_times_power(k, _EXP2, rest, whole, width)


def _series_times_power(k: Kernel, series: tuple[float, ...], x: str, power: str, width: int) -> str:
    """Return a power series of x, times 2**power, which goes straight into the exponents."""
    n = width // 4
    value = k.splat(series[-1])
    for coefficient in series[-2::-1]:
        value = k.fma(value, x, k.splat(coefficient), width)
    bits = k.value(f"bitcast <{n} x float> {value} to <{n} x i32>")
    shifted = k.value(f"shl <{n} x i32> {power}, splat (i32 23)")
    return k.value(f"bitcast <{n} x i32> {k.value(f'add <{n} x i32> {bits}, {shifted}')} to <{n} x float>")


def apply(k: Kernel, act: Act, x: str, width: int) -> str:
    """Return the activation of one vector of floats."""
    one = k.splat(1.0)
    if act.kind == "relu":
        return k.largest("zeroinitializer", x, width)
    if act.kind == "clamp":
        return k.least(k.splat(act.args[1]), k.largest(k.splat(act.args[0]), x, width), width)
    if act.kind == "leaky_relu":
        low = k.binary("fmul", x, k.splat(act.args[0]), width)
        return _where_positive(k, x, x, low, width)
    if act.kind in ("hardsigmoid", "hardswish"):
        gate = k.fma(x, k.splat(1 / 6), k.splat(0.5), width)
        gate = k.least(one, k.largest("zeroinitializer", gate, width), width)
        return gate if act.kind == "hardsigmoid" else k.binary("fmul", x, gate, width)
    if act.kind in ("sigmoid", "silu"):
        down = exp(k, k.binary("fsub", k.splat(-0.0), x, width), width)
        top = one if act.kind == "sigmoid" else x
        return k.binary("fdiv", top, k.binary("fadd", down, one, width), width)
    if act.kind == "tanh":
        return _tanh(k, x, width)
    if act.kind == "elu":
        low = k.binary("fsub", exp(k, x, width), one, width)
        return _where_positive(k, x, x, k.binary("fmul", low, k.splat(act.args[0]), width), width)
    if act.kind == "mish":
        up = exp(k, k.least(k.splat(20.0), x, width), width)
        top = k.binary("fmul", up, k.binary("fadd", up, k.splat(2.0), width), width)
        ratio = k.binary("fdiv", top, k.binary("fadd", top, k.splat(2.0), width), width)
        return k.binary("fmul", x, ratio, width)
    if act.kind in FLOAT_KINDS:
        return _plain(k, act.kind, x, width)
    assert act.kind in ("gelu", "gelu_tanh"), act.kind
    half = k.binary("fmul", x, k.splat(0.5), width)
    inner = _erf(k, x, width) if act.kind == "gelu" else _gelu_tanh(k, x, width)
    return k.fma(half, inner, half, width)


def _plain(k: Kernel, kind: str, x: str, width: int) -> str:
    """Return one of FLOAT_KINDS."""
    n, one = width // 4, k.splat(1.0)
    if kind in ("sqrt", "rsqrt"):
        root = k.call(f"llvm.sqrt.v{n}f32", x)
        return root if kind == "sqrt" else k.binary("fdiv", one, root, width)
    if kind == "reciprocal":
        return k.binary("fdiv", one, x, width)
    if kind == "exp":  # e**(x/2) twice, so that what is too large becomes infinite
        half = exp(k, k.binary("fmul", x, k.splat(0.5), width), width)
        return k.binary("fmul", half, half, width)
    if kind == "neg":
        return k.value(f"fneg <{n} x float> {x}")
    return k.call(f"llvm.fabs.v{n}f32", x)


def _where_positive(k: Kernel, x: str, yes: str, no: str, width: int) -> str:
    n = width // 4
    positive = k.value(f"fcmp ogt <{n} x float> {x}, zeroinitializer")
    return k.value(f"select <{n} x i1> {positive}, <{n} x float> {yes}, <{n} x float> {no}")


def _tanh(k: Kernel, x: str, width: int) -> str:
    """1 - 2 / (e**2x + 1)"""
    up = exp(k, k.binary("fadd", x, x, width), width)
    ratio = k.binary("fdiv", k.splat(2.0), k.binary("fadd", up, k.splat(1.0), width), width)
    return k.binary("fsub", k.splat(1.0), ratio, width)


def _gelu_tanh(k: Kernel, x: str, width: int) -> str:
    """tanh(sqrt(2 / pi) (x + 0.044715 x**3))"""
    root = math.sqrt(2 / math.pi)
    square = k.binary("fmul", x, x, width)
    factor = k.fma(square, k.splat(root * 0.044715), k.splat(root), width)
    return _tanh(k, k.binary("fmul", x, factor, width), width)


def _erf(k: Kernel, x: str, width: int) -> str:
    """erf(x / sqrt(2))"""
    n = width // 4
    scaled = k.binary("fmul", x, k.splat(math.sqrt(0.5)), width)
    size = k.call(f"llvm.fabs.v{n}f32", scaled)
    t = k.binary("fdiv", k.splat(1.0), k.fma(size, k.splat(0.3275911), k.splat(1.0), width), width)
    value = k.splat(_ERF[-1])
    for coefficient in _ERF[-2::-1]:
        value = k.fma(value, t, k.splat(coefficient), width)
    value = k.binary("fmul", value, t, width)
    square = k.binary("fmul", size, k.binary("fsub", k.splat(-0.0), size, width), width)
    value = k.binary("fsub", k.splat(1.0), k.binary("fmul", value, exp(k, square, width), width), width)
    return k.call(f"llvm.copysign.v{n}f32", value, scaled)
