"""Tables of floats in registers: one vector instruction looks an element up for each element of another vector."""

from __future__ import annotations

from fxquant.engines.native.vector import Kernel, indices


def lookup(k: Kernel, table: str, index: str, width: int) -> str:
    """Return the element of `machine.pieces` floats at an address that the low bits of each int32 name. x86 only."""
    if k.machine.pieces == 32:
        return _lookup_32(k, table, index, width)
    if width == 16:
        index = k.value(f"shufflevector <4 x i32> {index}, <4 x i32> poison, {indices([0, 1, 2, 3] * 2)}")
    low = k.call("llvm.x86.avx2.permps", k.load("<8 x float>", table, 32), index)
    high = k.call("llvm.x86.avx2.permps", k.load("<8 x float>", k.at(table, 32), 32), index)
    top = k.value(f"shl <8 x i32> {index}, splat (i32 28)")
    upper = k.value(f"icmp slt <8 x i32> {top}, zeroinitializer")
    found = k.value(f"select <8 x i1> {upper}, <8 x float> {high}, <8 x float> {low}")
    if width == 32:
        return found
    return k.value(f"shufflevector <8 x float> {found}, <8 x float> poison, {indices([0, 1, 2, 3])}")


def _lookup_32(k: Kernel, table: str, index: str, width: int) -> str:
    n = width // 4
    if n < 16:
        index = k.value(f"shufflevector <{n} x i32> {index}, <{n} x i32> poison, {indices([*range(n)] * (16 // n))}")
    low, high = (k.load("<16 x float>", k.at(table, offset), 64) for offset in (0, 64))
    found = k.call("llvm.x86.avx512.vpermi2var.ps.512", low, index, high)
    if n == 16:
        return found
    return k.value(f"shufflevector <16 x float> {found}, <16 x float> poison, {indices([*range(n)])}")
