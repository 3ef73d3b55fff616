"""Pairs of neighbours, int16 or bfloat16, and sums of their products, on machines that have instructions for them."""

from __future__ import annotations

from fxquant.engines.native.vector import Kernel, indices


def words(k: Kernel, even: str, odd: str, width: int) -> str:
    """Two vectors of int32 that fit int16 as one of int16, in turns."""
    return k.low_words(even, odd, width)


def dot_words(k: Kernel, total: str, x: str, y: str, width: int) -> str:
    """Return int32 sums with the products of two neighbours added."""
    return k.call(f"llvm.x86.avx512.vpdpwssd.{8 * width}", total, x, y)


def halves(k: Kernel, even: str, odd: str) -> str:
    """Two vectors of floats as one of bfloat16, in turns."""
    n = k.machine.floats
    beside = k.call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", odd, even)
    turns = indices([place // 2 + place % 2 * n for place in range(2 * n)])
    return k.value(f"shufflevector <{2 * n} x bfloat> {beside}, <{2 * n} x bfloat> poison, {turns}")


def dot_halves(k: Kernel, total: str, x: str, y: str) -> str:
    """Return sums of floats with the products of two neighbours added."""
    return k.call("llvm.x86.avx512bf16.dpbf16ps.512", total, x, y)


def size_bits(k: Kernel, x: str, width: int) -> str:
    """Return the bits of the sizes of floats: as int32 they have the same order, with NaN above all others."""
    n = width // 4
    whole = k.value(f"bitcast <{n} x float> {x} to <{n} x i32>")
    return k.value(f"and <{n} x i32> {whole}, splat (i32 2147483647)")
