"""What this CPU offers for int8. Without VNNI, u8 x s8 products are summed in saturating int16 pairs."""

from __future__ import annotations

import functools

import torch


@functools.cache
def has_vnni() -> bool:
    """Whether int8 dot products accumulate in int32 without an int16 step on the way."""
    probe = getattr(torch.cpu, "_is_vnni_supported", None)
    if probe is not None:
        return bool(probe())
    try:
        with open("/proc/cpuinfo") as file:
            flags = file.read()
    except OSError:
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags
