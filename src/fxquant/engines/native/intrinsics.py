"""Every LLVM intrinsic and outside function that kernels may call, with its type.

A call with a wrong signature crashes LLVM's parser instead of raising, so nothing is called that is not in this table.
"""

from __future__ import annotations

Signature = tuple[str, tuple[str, ...]]  # result, arguments


def _per_width() -> dict[str, Signature]:
    """Return what exists for vectors of 16, 32 and 64 bytes."""
    made: dict[str, Signature] = {}
    for size, bits in ((16, "128"), (32, "256"), (64, "512")):
        n = size // 4
        f32, i32, i16, i8 = f"<{n} x float>", f"<{n} x i32>", f"<{2 * n} x i16>", f"<{size} x i8>"
        made[f"llvm.fma.v{n}f32"] = (f32, (f32, f32, f32))
        made[f"llvm.sqrt.v{n}f32"] = (f32, (f32,))
        made[f"llvm.fabs.v{n}f32"] = (f32, (f32,))
        made[f"llvm.copysign.v{n}f32"] = (f32, (f32, f32))
        made[f"llvm.vector.reduce.fadd.v{n}f32"] = ("float", ("float", f32))
        made[f"llvm.vector.reduce.fmax.v{n}f32"] = ("float", (f32,))
        for name in ("smin", "smax"):
            made[f"llvm.{name}.v{n}i32"] = (i32, (i32, i32))
        for name in ("umin", "umax"):
            made[f"llvm.{name}.v{size}i8"] = (i8, (i8, i8))
        made[f"llvm.x86.avx512.vpdpbusd.{bits}"] = (i32, (i32, i8, i8))
        made[f"llvm.x86.avx512.vpdpwssd.{bits}"] = (i32, (i32, i16, i16))
        made[f"llvm.vector.reduce.smax.v{n}i32"] = ("i32", (i32,))
        pack_words, pack_bytes, madd, bytes_madd = {
            "128": ("sse2.packssdw.128", "sse2.packuswb.128", "sse2.pmadd.wd", "ssse3.pmadd.ub.sw.128"),
            "256": ("avx2.packssdw", "avx2.packuswb", "avx2.pmadd.wd", "avx2.pmadd.ub.sw"),
            "512": ("avx512.packssdw.512", "avx512.packuswb.512", "avx512.pmaddw.d.512", "avx512.pmaddubs.w.512"),
        }[bits]
        made[f"llvm.x86.{pack_words}"] = (i16, (i32, i32))
        made[f"llvm.x86.{pack_bytes}"] = (i8, (i16, i16))
        made[f"llvm.x86.{madd}"] = (i32, (i16, i16))
        made[f"llvm.x86.{bytes_madd}"] = (i16, (i8, i8))
    for n in (1, 2, 3, 4, 8, 16, 32, 64):
        made.setdefault(f"llvm.umax.v{n}i8", (f"<{n} x i8>", (f"<{n} x i8>",) * 2))
        made.setdefault(f"llvm.umin.v{n}i8", (f"<{n} x i8>", (f"<{n} x i8>",) * 2))
    return made


INTRINSICS: dict[str, Signature] = {
    **_per_width(),
    "llvm.x86.avx512.mask.cvtps2dq.512": ("<16 x i32>", ("<16 x float>", "<16 x i32>", "i16", "i32")),
    "llvm.x86.avx.cvt.ps2dq.256": ("<8 x i32>", ("<8 x float>",)),
    "llvm.x86.sse2.cvtps2dq": ("<4 x i32>", ("<4 x float>",)),
    "llvm.x86.avx512.vpermi2var.ps.512": ("<16 x float>", ("<16 x float>", "<16 x i32>", "<16 x float>")),
    "llvm.x86.avx512.permvar.hi.512": ("<32 x i16>", ("<32 x i16>", "<32 x i16>")),
    "llvm.x86.avx512.pmul.hr.sw.512": ("<32 x i16>", ("<32 x i16>", "<32 x i16>")),
    "llvm.sadd.sat.v32i16": ("<32 x i16>", ("<32 x i16>", "<32 x i16>")),
    "llvm.x86.avx512bf16.dpbf16ps.512": ("<16 x float>", ("<16 x float>", "<32 x bfloat>", "<32 x bfloat>")),
    "llvm.x86.avx512bf16.cvtne2ps2bf16.512": ("<32 x bfloat>", ("<16 x float>", "<16 x float>")),
    "llvm.x86.avx2.permps": ("<8 x float>", ("<8 x float>", "<8 x i32>")),
    "llvm.x86.avx512.pshuf.b.512": ("<64 x i8>", ("<64 x i8>", "<64 x i8>")),
    "llvm.x86.avx2.pshuf.b": ("<32 x i8>", ("<32 x i8>", "<32 x i8>")),
    "llvm.x86.sse2.pause": ("void", ()),
    "llvm.aarch64.neon.sdot.v4i32.v16i8": ("<4 x i32>", ("<4 x i32>", "<16 x i8>", "<16 x i8>")),
    "llvm.aarch64.neon.usdot.v4i32.v16i8": ("<4 x i32>", ("<4 x i32>", "<16 x i8>", "<16 x i8>")),
    "llvm.aarch64.neon.fcvtns.v4i32.v4f32": ("<4 x i32>", ("<4 x float>",)),
    "llvm.prefetch.p0": ("void", ("ptr", "i32", "i32", "i32")),
    "llvm.memset.p0.i64": ("void", ("ptr", "i8", "i64", "i1")),
    "llvm.memcpy.p0.p0.i64": ("void", ("ptr", "ptr", "i64", "i1")),
    "llvm.memmove.p0.p0.i64": ("void", ("ptr", "ptr", "i64", "i1")),
    "llvm.smin.i64": ("i64", ("i64", "i64")),
    "llvm.smax.i64": ("i64", ("i64", "i64")),
    "usleep": ("i32", ("i32",)),
    "sem_init": ("i32", ("ptr", "i32", "i32")),
    "sem_wait": ("i32", ("ptr",)),
    "sem_post": ("i32", ("ptr",)),
}


def declaration(name: str) -> str:
    """Return the line that declares one of them."""
    result, arguments = INTRINSICS[name]
    return f"declare {result} @{name}({', '.join(arguments)})"
