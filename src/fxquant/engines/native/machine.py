"""The vector machines that kernels are written for, as data.

A machine has vectors of `width` bytes and a way (`dot`) to add the four products of neighbouring bytes to an int32:

    vpdpbusd  u8 x s8 at once (AVX512-VNNI, AVX-VNNI)
    madd      u8 and s8 as 16 bits, even and odd bytes apart, two vpmaddwd: exact, where vpmaddubsw saturates (AVX2)
    maddubs   vpmaddubsw, then vpmaddwd by ones: half the weight bytes, exact if two products fit int16 (AVX2)
    sdot      s8 x s8 (NEON): u8 activations are moved down by 128, and the bias takes that back
    usdot     u8 x s8 at once (NEON with i8mm)

With `bf16`, pairs of bfloat16 are multiplied and added to floats at once (vdpbf16ps): twice the products of an fma.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

Dot = Literal["vpdpbusd", "madd", "maddubs", "sdot", "usdot"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """`features` are what the host must have, by LLVM's names; `cpu` is what LLVM is told to write for."""

    name: str
    triple: str
    cpu: str
    features: str = ""
    needs: tuple[str, ...] = ()
    width: int
    registers: int
    dot: Dot
    bf16: bool = False
    halved: bool = False  # whether instructions run as two, each for half of a vector
    eager: bool = False  # whether it works ahead into the next tile, if tiles are small
    blends: bool = False  # whether it blends and shifts vectors beside products, and shuffles fewer
    hosts: tuple[str, ...] = ()  # CPUs by LLVM's names, where features do not tell
    rate: float = 200e9  # products in a second and core, roughly

    @property
    def floats(self) -> int:
        """Elements of 32 bits in a vector."""
        return self.width // 4

    @property
    def pieces(self) -> int:
        """How many entries a table has that is looked up at once."""
        return 32 if self.width == 64 else 16

    @property
    def words(self) -> bool:
        """Whether 32 words are looked up at once."""
        return self.width == 64

    @property
    def dot_words(self) -> bool:
        """Whether pairs of int16 are multiplied and added to int32 at once."""
        return self.dot == "vpdpbusd"

    @property
    def weight_bytes(self) -> int:
        """Bytes that a weight takes when packed."""
        return 2 if self.dot == "madd" else 1

    @property
    def shift(self) -> int:
        """What is taken from activations before they are multiplied."""
        return 128 if self.dot == "sdot" else 0

    def for_pairs(self, fit: bool) -> Machine:
        """Return the machine for a kernel whose sums of two products all fit int16, or not."""
        return replace(self, dot="maddubs") if self.dot == "madd" and fit else self

    def most_rows(self, vectors: int) -> int:
        """Tell how many pixels a tile of that many vectors of channels can have, with its sums in registers."""
        spare = {"madd": 3, "maddubs": 7}.get(self.dot, 1)  # with fewer, LLVM spills sums around the loop
        kept = vectors if self.registers > 16 else 1  # few registers: weights come from memory
        return max(1, min(16, (self.registers - spare - kept) // vectors))


_X86 = "x86_64-unknown-linux-gnu"
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")

AVX512 = Machine(
    name="avx512-vnni", triple=_X86, cpu="cascadelake", needs=_AVX512, width=64, registers=32, dot="vpdpbusd"
)
AVX512_BF16 = replace(AVX512, name="avx512-bf16", cpu="cooperlake", needs=(*_AVX512, "avx512bf16"), bf16=True)
ZEN5 = replace(AVX512_BF16, name="avx512-zen5", hosts=("znver5",), eager=True, blends=True)
ZEN4 = replace(ZEN5, name="avx512-zen4", hosts=("znver4",), halved=True, blends=False)
AVX512_256 = Machine(
    name="avx512-vnni-256", triple=_X86, cpu="cascadelake", needs=_AVX512, width=32, registers=32, dot="vpdpbusd"
)
AVX_VNNI = Machine(
    name="avx-vnni", triple=_X86, cpu="alderlake", needs=("avxvnni",), width=32, registers=16, dot="vpdpbusd"
)
AVX2 = Machine(
    name="avx2",
    triple=_X86,
    cpu="haswell",
    needs=("avx2", "fma", "f16c", "bmi2"),
    width=32,
    registers=16,
    dot="madd",
    rate=90e9,
)
NEON = Machine(
    name="neon-dotprod",
    triple="aarch64-unknown-linux-gnu",
    cpu="cortex-a76",
    features="+dotprod",
    needs=("dotprod",),
    width=16,
    registers=32,
    dot="sdot",
)
NEON_I8MM = replace(
    NEON, name="neon-i8mm", cpu="neoverse-n2", features="+dotprod,+i8mm", needs=("dotprod", "i8mm"), dot="usdot"
)
MACHINES = (ZEN5, ZEN4, AVX512_BF16, AVX512, AVX_VNNI, AVX512_256, AVX2, NEON_I8MM, NEON)


def runs_here(machine: Machine) -> bool:
    """Tell whether this CPU has what a machine needs."""
    if machine.hosts and _cpu() not in machine.hosts:
        return False
    return _platform() == _platform_of(machine.triple) and all(_features().get(name, False) for name in machine.needs)


@functools.cache
def host() -> Machine | None:
    """Return the best machine that this CPU is; None if it is none of them."""
    return next((machine for machine in MACHINES if runs_here(machine)), None)


def _platform_of(triple: str) -> tuple[str, str]:
    """Return the architecture and the system: calls, and what is called, are not the same on all of them."""
    arch, _, rest = triple.partition("-")
    return arch, "linux" if "linux" in rest else rest


@functools.cache
def _platform() -> tuple[str, str]:
    import llvmlite.binding as llvm

    return _platform_of(str(llvm.get_process_triple()))


@functools.cache
def _cpu() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


@functools.cache
def _features() -> dict[str, bool]:
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())
