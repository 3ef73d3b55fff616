"""What this CPU offers for int8: the instruction sets that decide which grid is safe and how fast kernels are."""

from __future__ import annotations

import functools
import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """`vnni`: u8 x s8 products are summed in int32 at once. Without it, pairs are summed in saturating int16 first."""

    avx2: bool
    avx512: bool
    vnni: bool
    amx: bool

    def __str__(self) -> str:
        names = [name for name in ("avx2", "avx512", "vnni", "amx") if getattr(self, name)]
        return ", ".join(names) or "no AVX2"


@functools.cache
def cpu() -> Cpu:
    """Return the facts of this machine, from torch where it knows them, else from the kernel's list of flags."""
    flags = _flags()
    return Cpu(
        avx2=_asked("_is_avx2_supported", "avx2" in flags),
        avx512=_asked("_is_avx512_supported", "avx512f" in flags),
        vnni=_asked("_is_vnni_supported", "avx512_vnni" in flags) or "avx_vnni" in flags,
        amx=_asked("_is_amx_tile_supported", "amx_tile" in flags) and "amx_int8" in flags,
    )


@functools.cache
def makes_code() -> bool:
    """Tell whether native code, which needs no VNNI for exact sums, can be made and run here."""
    return importlib.util.find_spec("llvmlite") is not None and (cpu().avx2 or platform.machine() == "aarch64")


def _asked(name: str, otherwise: bool) -> bool:
    probe = getattr(torch.cpu, name, None)
    return bool(probe()) if probe is not None else otherwise


def _flags() -> frozenset[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(found.split())
