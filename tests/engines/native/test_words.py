"""Activations on 16 bits: the table is near the function, and its code computes the table."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from fxquant.engines.native.activations import Act, formula
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX512, runs_here
from fxquant.engines.native.parts import aligned
from fxquant.engines.native.vector import Kernel
from fxquant.engines.native.words import apply_words, fit_words

GRIDS = {"silu": (0.02, 14), "gelu": (0.011, 15), "sigmoid": (1 / 255, 0), "tanh": (2 / 255, 128)}


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("width", [64, 16])
@pytest.mark.skipif(not runs_here(AVX512), reason="this CPU has no AVX512-VNNI")
def test_every_input_gives_the_nearest_step(kind: str, width: int) -> None:
    act, (scale, zero) = Act(kind=kind), GRIDS[kind]
    words = fit_words(act, scale, zero)
    assert words is not None
    k = Kernel("words", ("x", "table", "out"), AVX512)
    type_ = f"<{width // 2} x i16>"
    k.each("%y0", "%y1", lambda index: k.store(type_, _applied(k, type_, index, width), k.step("%out", index, width)))
    k.lines[0] = k.lines[0].replace("define internal", "define")
    library = Libraries().load([k], AVX512)
    x, out, table = aligned(2 << 16).view(np.int16), aligned(2 << 16).view(np.int16), aligned(words.table.nbytes)
    x[:] = np.arange(-32768, 32768)
    table[:] = words.table.view(np.uint8)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4)(library.address("words"))
    call(*(array.ctypes.data for array in (x, table, out)), 0, (2 << 16) // width, 0, 1)
    exact = formula(act)(words.centre + x.astype(np.float64) / words.factor) / scale + zero
    off = np.abs(out.clip(0, 255) - np.rint(exact).clip(0, 255))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.02


def _applied(k: Kernel, type_: str, index: str, width: int) -> str:
    return apply_words(k, k.load(type_, k.step("%x", index, width)), "%table", width)


def test_a_function_that_the_grid_cuts_at_an_angle_has_no_table() -> None:
    assert fit_words(Act(kind="silu"), 1 / 255, 0) is None
