"""Keys and values as attention.py reads them on machines that multiply pairs of int16, or of bfloat16.

    keys     [head][key](scale, [ceil(depth / 2)][2] int16)    two numbers of a key beside one another
    values   [head][ceil(keys / 2)][width][2] bfloat16         the same number of two keys

The integers of a key reach from -`most` to `most`, and its scale is a float: so the sum of their products with those of
a query is exact in int32. A key with infinity or NaN in it has that for a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fxquant.engines.native.machine import Machine
from fxquant.engines.native.pair_products import halves, size_bits
from fxquant.engines.native.vector import Kernel

LEAST = 1e-30  # what a largest number counts for at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The shape of one kernel. `heads` are (count, strides of keys and values, of both as pairs), in bytes.

    Without `values` there are keys alone.
    """

    heads: tuple[tuple[int, int, int, int, int], ...]
    keys: int
    depth: int
    width: int
    k_row: int
    v_row: int
    values: bool

    @property
    def rows(self) -> int:
        """Pairs of keys."""
        return -(-self.keys // 2)


def key_words(depth: int) -> int:
    """Tell how many int32 a key takes: its scale, and pairs."""
    return 1 + -(-depth // 2)


def most(depth: int) -> int:
    """Return the largest integer of queries and keys with so many numbers."""
    return min(32767, math.isqrt((2**31 - 1) // depth) - 1)


def emit(name: str, spec: Pairs, machine: Machine) -> Kernel:
    """Return the kernel: `keys`, `values`, and where they go. Work is split by pairs of keys."""
    k = Kernel(name, ("keys", "values", "key_pairs", "value_pairs"), machine)
    full = spec.keys // 2

    def nest(depth: int, places: tuple[str, ...]) -> None:
        if depth == len(spec.heads):
            k.each("%y0", k.call("llvm.smin.i64", "%y1", str(full)), lambda pair: _pair(k, spec, places, pair, 2))
            if spec.keys % 2:
                ends = k.value(f"icmp eq i64 %y1, {full + 1}")
                k.when(ends, lambda: _pair(k, spec, places, str(full), 1))
            return
        count, *steps = spec.heads[depth]

        def head(index: str) -> None:
            nest(depth + 1, tuple(k.step(at, index, step) for at, step in zip(places, steps, strict=True)))

        k.each(0, count, head)

    nest(0, ("%keys", "%values", "%key_pairs", "%value_pairs"))
    return k


def _pair(k: Kernel, spec: Pairs, places: tuple[str, ...], pair: str, count: int) -> None:
    """Two keys and their values, or the last one."""
    keys, values, key_pairs, value_pairs = places
    to_row = 4 * key_words(spec.depth)
    from_key, to_key = k.step(keys, pair, 2 * spec.k_row), k.step(key_pairs, pair, 2 * to_row)
    for row in range(count):
        _key(k, spec, k.at(from_key, row * spec.k_row), k.at(to_key, row * to_row))
    if not spec.values:
        return
    n = k.machine.floats
    from_value, to_value = k.step(values, pair, 2 * spec.v_row), k.step(value_pairs, pair, 4 * spec.width)
    for first in range(0, spec.width, n):
        kept = min(n, spec.width - first)
        even = k.load_part("float", n, kept, k.at(from_value, 4 * first))
        odd = "zeroinitializer"
        if count == 2:
            odd = k.load_part("float", n, kept, k.at(from_value, spec.v_row + 4 * first))
        k.store_part("bfloat", 2 * n, 2 * kept, halves(k, even, odd), k.at(to_value, 4 * first))


def _key(k: Kernel, spec: Pairs, address: str, to: str) -> None:
    """Compute the scale and integers of a key."""
    n, size = k.machine.floats, k.machine.width
    vectors = [
        k.load_part("float", n, min(n, spec.depth - first), k.at(address, 4 * first))
        for first in range(0, spec.depth, n)
    ]
    sizes = [size_bits(k, vector, size) for vector in vectors]
    while len(sizes) > 1:
        sizes = [k.call(f"llvm.smax.v{n}i32", a, b) for a, b in zip(sizes[::2], sizes[1::2], strict=False)] + (
            sizes[-1:] if len(sizes) % 2 else []
        )
    largest = k.call(f"llvm.vector.reduce.smax.v{n}i32", sizes[0])
    bits = k.value(f"insertelement <{n} x i32> poison, i32 {largest}, i64 0")
    bits = k.value(f"shufflevector <{n} x i32> {bits}, <{n} x i32> poison, <{n} x i32> zeroinitializer")
    scale, inverse = scales(k, bits, spec.depth)
    k.store("float", k.value(f"extractelement <{n} x float> {scale}, i64 0"), to, 4)
    for place, vector in enumerate(vectors):
        kept = min(n, spec.depth - n * place)
        whole = k.round(k.binary("fmul", vector, inverse, size), size)
        words = k.value(f"trunc <{n} x i32> {whole} to <{n} x i16>")
        k.store_part("i16", n, kept + kept % 2, words, k.at(to, 4 + 2 * n * place))


def scales(k: Kernel, bits: str, depth: int) -> tuple[str, str]:
    """(scale, 1 / scale) of numbers by the bits of the largest of them."""
    n, size = k.machine.floats, k.machine.width
    largest = k.value(f"bitcast <{n} x i32> {bits} to <{n} x float>")
    largest = k.largest(k.splat(LEAST), largest, size)
    scale = k.binary("fmul", largest, k.splat(1 / most(depth)), size)
    return scale, k.binary("fdiv", k.splat(float(most(depth))), largest, size)
