"""The scales and biases of a gemm whose input is on the grid of its own range: computed in every call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxquant.engines.native import dynamic
from fxquant.engines.native.arithmetic import Numbers
from fxquant.engines.native.dynamic import Affine
from fxquant.engines.native.finish import HEADER_BYTES
from fxquant.engines.native.gemm_shape import Gemm
from fxquant.engines.native.machine import Machine
from fxquant.engines.native.ops import pointer
from fxquant.engines.native.pack_gemm import pack_affine
from fxquant.engines.native.reader import Reader
from fxquant.engines.native.values import View, dense


def scaled_affine(reader: Reader, made: Numbers, spec: Gemm, machine: Machine, place: View) -> View:
    """Return what the gemm reads as `params`, as a tensor of the program; `place` holds scale and zero of the input."""
    nothing = np.zeros_like(made.scale)
    totals = made.scale * made.weight.astype(np.int64).sum((1, 2, 3))
    pairs = ((made.scale, nothing), (nothing, totals), (nothing, made.plain))
    pieces = [_floats(spec, machine, *pair) for pair in pairs]
    size = len(pieces[0])
    out = dense("f32", (size,), (0,), None, place.level)
    reader.emit(
        dynamic.affine,
        Affine(size=size, shift=machine.shift),
        (pointer(place), reader.constant(np.concatenate(pieces)), pointer(out)),
        [place],
        out,
        label=f"scales {len(made.scale)}",
    )
    return out


def _floats(spec: Gemm, machine: Machine, scale: NDArray[np.float64], bias: NDArray[np.float64]) -> NDArray[np.float32]:
    """Numbers of all channels behind an empty header, as the gemm reads them, rounded up to 64 bytes."""
    wide = np.zeros((2, sum(spec.blocks) * machine.floats))
    wide[0, : len(scale)], wide[1, : len(bias)] = scale, bias
    body = pack_affine(wide[0], wide[1], spec, machine, None).view(np.float32)
    first = HEADER_BYTES // 4
    whole = np.zeros(-(-(first + len(body)) // 16) * 16, np.float32)
    whole[first : first + len(body)] = body
    return whole
