"""From int32 sums to the output of a kernel, one pixel at a time.

    x = sum * scale[channel] + bias[channel]  (+ other * other_scale)
    no activation, or a clamp:   q = clamp(round(x), low, high)        scale and bias are in output steps
    a table:                     q = clamp(round(table(x)), 0, 255)    of floats, or of `words`: see there
    an activation by formula:    q = round(act(x) * out_scale + zero)
    floats:                      act(x)

Everything but the shape of the code is read through pointers: a header that all channels share, then scales and biases
in the order of the vectors.

Sums that begin at MAGIC's bits are floats already, which saves an instruction. The bias takes back MAGIC times the
scale, a number so large that as a float it may be off by a hundredth of a step. So each channel begins some whole
number further, with the one that leaves its bias closest to a float; the next scales are tried where none is close.
Outputs can be made in the same way: MAGIC is added with the bias, and the instruction that multiplies rounds, too. That
bias has to be a whole number, so there are more beginnings to choose from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native.activations import TABLE_BYTES, Act, apply, apply_table
from fxquant.engines.native.vector import MAGIC, Kernel
from fxquant.engines.native.vector_order import parts
from fxquant.engines.native.words import apply_words

_OTHER, _SCALE, _ZERO, _TABLE = 0, 64, 128, 192
HEADER_BYTES = _TABLE + TABLE_BYTES
_LARGEST = float(2**30)
_STARTS = 2**16 * np.arange(16)  # whole numbers, beyond MAGIC, of which each channel's sums begin with one
MOST_LANDED = 2**15 - 2**8  # values of this size keep their sign in the low word
LEAST_LANDED, GREATEST_LANDED = 2.0**-19, 0.1  # scales for which some start makes up for any bias
MOST_MAGIC = 2**22 - 2**20  # sums of this size stay floats of the same exponent
_LANDINGS = 64  # numbers of whole steps that are tried
_MOVES = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # of a scale, in units of its last place
_EXACT = 1e-4  # steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """What is done with sums. `other` is the dtype of a tensor to add. `table` says that the activation is a table.

    `words`: it is one of words.
    `magic`: sums start near MAGIC's bits, so that they are floats already; they and the scales have to be small.
    `landed`: so do the values, which the one instruction that makes them rounds; they have to fit int16.
    `turns`: each two vectors of channels that are packed to bytes together hold them in turns.
    `bounded`: values may lie beyond what int32 holds and are cut first.
    """

    out: Literal["u8", "f32"] = "u8"
    other: Literal["", "u8", "f32"] = ""
    act: Act | None = None
    table: bool = False
    words: bool = False
    low: int = 0
    high: int = 255
    magic: bool = False
    landed: bool = False
    turns: bool = False
    bounded: bool = False

    @property
    def rows(self) -> int:
        """How many numbers a channel has in `params`: scale, bias, and where its sums start."""
        return 3 if self.magic else 2

    @property
    def out_bytes(self) -> int:
        return 4 if self.out == "f32" else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Addresses of a pixel's channels, and of the header. `apart` and `others`: of several that share vectors."""

    header: str
    out: str
    other: str = ""
    apart: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def load_affine(k: Kernel, params: str, vectors: int, width: int) -> tuple[list[str], list[str]]:
    """Return the scales and biases of a block of channels."""
    type_ = f"<{width // 4} x float>"
    both = [k.load(type_, k.at(params, width * index), width) for index in range(2 * vectors)]
    return both[:vectors], both[vectors:]


def load_starts(k: Kernel, spec: Finish, params: str, vectors: int, width: int) -> list[str]:
    """Return the first values of the sums of a block of channels."""
    if not spec.magic:
        return ["zeroinitializer"] * vectors
    return [k.load(f"<{width // 4} x i32>", k.at(params, width * (2 * vectors + v)), width) for v in range(vectors)]


def finish(
    k: Kernel,
    spec: Finish,
    sums: list[list[str]],
    affine: tuple[list[str], list[str]],
    places: list[Places],
    width: int,
) -> None:
    """Write the outputs of some pixels, each from the sums of a block of channels."""
    if spec.out == "f32":
        for each, place in zip(sums, places, strict=True):
            for index, x in enumerate(_values(k, spec, each, affine, place, width)):
                k.store(f"<{width // 4} x float>", x, k.at(place.out, width * index))
        return
    vectors = len(affine[0])
    together = 4 // min(parts(vectors))  # pixels, of which vectors are packed to bytes at once
    for first in range(0, len(sums), together):
        some = places[first : first + together]
        values = [
            _values(k, spec, each, affine, place, width)
            for each, place in zip(sums[first : first + together], some, strict=True)
        ]
        _store(k, spec, values, some, width)


def _store(k: Kernel, spec: Finish, values: list[list[str]], places: list[Places], width: int) -> None:
    """Round the values of some pixels, and write them as bytes: as many of them at once as make four vectors."""
    n, done = width // 4, 0
    for part in parts(len(values[0])):
        step = 4 // part
        for first in range(0, len(values), step):
            some, where = values[first : first + step], places[first : first + step]
            rounded = [[_round(k, spec, x, width) for x in each[done : done + part]] for each in some]
            if len(some) == step:
                packed = _narrow(k, spec, [x for each in rounded for x in each], where[0].header, width, part)
                packed = k.clamp_bytes(packed, spec.low, spec.high, width)
                for place, bytes_ in zip(where, k.apart(packed, step, width), strict=True):
                    _put(k, bytes_, width // step, place, n * done)
                continue
            for place, each in zip(where, rounded, strict=True):
                packed = _narrow(k, spec, each, place.header, width, part)
                _put(k, k.clamp_bytes(packed, spec.low, spec.high, part * n), part * n, place, n * done)
        done += part


def _put(k: Kernel, packed: str, size: int, place: Places, offset: int = 0) -> None:
    """Write so many bytes of channels from an offset on; of pixels that share them, to each its own."""
    targets = place.apart or (place.out,)
    each = size // len(targets)
    for address, bytes_ in zip(targets, k.pieces(packed, len(targets), size), strict=True):
        k.store(f"<{each} x i8>", bytes_, k.at(address, offset))


def finish_half(
    k: Kernel, spec: Finish, sums: list[str], affine: tuple[list[str], list[str]], header: str, width: int
) -> str:
    """Return two of the four vectors of sums of an output as words. Nothing is added to it."""
    values = _values(k, spec, sums, affine, Places(header=header, out=""), width)
    a, b = (_round(k, spec, x, width) for x in values)
    if spec.landed:
        return k.low_words(a, b, width)
    words = k.words(a, b, width)
    return apply_words(k, words, k.at(header, _TABLE), width) if spec.words else words


def store_halves(k: Kernel, spec: Finish, first: str, second: str, place: Places, width: int) -> None:
    """Write both halves of an output's words as bytes."""
    packed = k.bytes_of_turns([first, second], 4, width) if spec.landed else k.bytes_of(first, second, width)
    _put(k, k.clamp_bytes(packed, spec.low, spec.high, width), width, place)


def _round(k: Kernel, spec: Finish, x: str, width: int) -> str:
    n = width // 4
    return k.value(f"bitcast <{n} x float> {x} to <{n} x i32>") if spec.landed else k.round(x, width)


def _narrow(k: Kernel, spec: Finish, vectors: list[str], header: str, width: int, part: int) -> str:
    if spec.landed:
        return k.narrow_words(vectors, width, spec.turns and part > 1)
    if not spec.words:
        return k.narrow(vectors, width)
    return k.narrow(vectors, width, lambda words: apply_words(k, words, k.at(header, _TABLE), width))


def _values(
    k: Kernel, spec: Finish, sums: list[str], affine: tuple[list[str], list[str]], places: Places, width: int
) -> list[str]:
    """Return the floats of one pixel that are to be written, or rounded and written."""
    n = width // 4
    type_ = f"<{n} x float>"
    values = []
    for total, scale, bias in zip(sums, *affine, strict=True):
        x = k.value(f"bitcast <{n} x i32> {total} to {type_}") if spec.magic else k.to_float(total, width)
        values.append(k.fma(x, scale, bias, width))
    if spec.other:
        values = _add_other(k, spec, values, places, width)
    if spec.act is not None and not spec.words:
        values = [_activate(k, spec, x, places.header, width) for x in values]
    if spec.out == "u8" and spec.bounded:
        values = [k.least(k.splat(_LARGEST), x, width) for x in values]
    return values


def _activate(k: Kernel, spec: Finish, x: str, header: str, width: int) -> str:
    assert spec.act is not None
    if spec.table:
        return apply_table(k, x, k.at(header, _TABLE), width)
    value = apply(k, spec.act, x, width)
    if spec.out == "f32":
        return value
    type_ = f"<{width // 4} x float>"
    scale, zero = (k.load(type_, k.at(header, offset), width) for offset in (_SCALE, _ZERO))
    return k.fma(value, scale, zero, width)


def _add_other(k: Kernel, spec: Finish, values: list[str], places: Places, width: int) -> list[str]:
    n = width // 4
    type_ = f"<{n} x float>"
    if spec.other == "f32":
        others = [k.load(type_, k.at(places.other, width * index)) for index in range(len(values))]
        return [k.binary("fadd", x, other, width) for x, other in zip(values, others, strict=True)]
    scale = k.load(type_, k.at(places.header, _OTHER), width)
    added: list[str] = []
    first = 0
    for part in parts(len(values)):
        wide = (
            [k.widen_apart(places.others, width)]
            if places.others
            else k.widen(k.at(places.other, n * first), part, width)
        )
        added += [
            k.fma(k.to_float(other, width), scale, x, width)
            for x, other in zip(values[first : first + part], wide, strict=True)
        ]
        first += part
    return added


def header(
    other_scale: float = 0.0, scale: float = 0.0, zero: float = 0.0, table: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return what all channels share, as `finish` reads it."""
    start = np.repeat(np.array([other_scale, scale, zero], np.float32), 16)
    return np.concatenate((start, np.zeros(TABLE_BYTES // 4, np.float32) if table is None else table))


def affine_rows(scale: NDArray[np.float64], bias: NDArray[np.float64], spec: Finish) -> NDArray[np.float32]:
    """Scales and biases of all channels; with `magic`, where their sums start, too."""
    if not spec.magic:
        return np.stack((scale, bias)).astype(np.float32)
    if spec.landed:
        scale = np.where(scale < LEAST_LANDED, 0.0, scale)  # what is left of these channels is their bias
    nearest = scale.astype(np.float32)
    rows, off = np.zeros((3, len(scale))), np.full(len(scale), np.inf)
    for move in _MOVES:
        left = np.flatnonzero((off > _EXACT) & ((scale > 0) | (move == 0)))
        if not len(left):
            break
        tried = (nearest[left].view(np.int32) + np.int32(move)).view(np.float32).astype(np.float64)
        starts = MAGIC + (_landing(tried, bias[left]) if spec.landed else _STARTS[:, None])
        exact = bias[left] - starts * tried + (MAGIC if spec.landed else 0.0)
        rounding = np.abs(exact.astype(np.float32) - exact)
        best = rounding.argmin(0), np.arange(len(left))
        steps = 256 + np.abs(bias[left])  # as large as the output gets
        missed = rounding[best] + steps * np.abs(tried - scale[left]) / np.maximum(scale[left], 1e-300)
        better = missed < off[left]
        made = np.stack((tried, exact[best], np.broadcast_to(starts, exact.shape)[best]))
        rows[:, left[better]], off[left[better]] = made[:, better], missed[better]
    return rows.astype(np.float32)


def _landing(scale: NDArray[np.float64], bias: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return some whole numbers for each channel after which sums times the scale are about whole numbers of steps."""
    apart = np.maximum(np.floor(_STARTS[-1] * scale / _LANDINGS), 1.0)  # steps; far apart, more of them differ
    steps = np.arange(_LANDINGS)[:, None] * apart + (bias - MAGIC * scale) % 1.0
    found: NDArray[np.float64] = np.rint(steps / np.maximum(scale, 1e-300)).clip(0, _STARTS[-1])
    return found
