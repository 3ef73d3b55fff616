"""Pairs of bytes that are chosen so that their products fit int16: exact sums with weights of all 8 bits."""

from __future__ import annotations

import ctypes
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

pytest.importorskip("llvmlite")

from fxquant.engines.native import gemm
from fxquant.engines.native.finish import HEADER_BYTES, Finish
from fxquant.engines.native.gemm_shape import Gemm, Taps
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, runs_here
from fxquant.engines.native.pack_gemm import pack_affine, pack_listed
from fxquant.engines.native.pairing import NONE, WINDOW, find_steps
from fxquant.engines.native.parts import aligned

Integers = NDArray[np.int8]


def _one_pair(rng: np.random.Generator, shape: tuple[int, ...]) -> Integers:
    found = np.zeros(shape, np.int8)
    found.reshape(-1)[rng.integers(found.size, size=2)] = 127
    return found


def _alternating(_: np.random.Generator, shape: tuple[int, ...]) -> Integers:
    return np.where(np.arange(np.prod(shape)) % 2 == 0, 127, -128).astype(np.int8).reshape(shape)


WEIGHTS = {
    "largest": lambda rng, shape: np.full(shape, 127, np.int8),
    "lowest": lambda rng, shape: np.full(shape, -128, np.int8),
    "symmetric lowest": lambda rng, shape: np.full(shape, -127, np.int8),
    "alternating": _alternating,
    "random": lambda rng, shape: rng.integers(-128, 128, shape).astype(np.int8),
    "normal": lambda rng, shape: np.clip(np.round(rng.normal(size=shape) * 36), -127, 127).astype(np.int8),
    "one pair": _one_pair,
    "none": lambda rng, shape: np.zeros(shape, np.int8),
}


@settings(deadline=None)
@given(st.sampled_from(sorted(WEIGHTS)), st.sampled_from((255, 200, 140)), st.integers(0, 2**16))
def test_every_pair_fits_and_every_byte_is_there_once(kind: str, most: int, seed: int) -> None:
    weights = WEIGHTS[kind](np.random.default_rng(seed), (WINDOW, 16, 5))
    steps = find_steps(weights, most)
    wide = np.concatenate((weights, np.zeros((1, *weights.shape[1:]), np.int8))).astype(np.int64)
    four = wide[np.minimum(steps.places, WINDOW), :, steps.window[:, None]]  # steps, 4, channels
    pairs = four.reshape(-1, 2, 16)
    assert most * np.maximum(pairs, 0).sum(1).max(initial=0) < 2**15
    assert most * np.minimum(pairs, 0).sum(1).min(initial=0) >= -(2**15)
    for window in range(5):
        places = steps.places[steps.window == window].reshape(-1)
        used = np.flatnonzero(weights[:, :, window].any(1))
        assert sorted(places[places != NONE]) == list(used)


def test_weights_that_fit_anyway_take_no_more_steps() -> None:
    weights = np.random.default_rng(0).integers(1, 65, (WINDOW, 16, 40)).astype(np.int8)
    assert len(find_steps(weights, 255).window) == 4 * 40


@st.composite
def products(draw: Any) -> tuple[Gemm, str, int]:
    """A kernel that writes floats, which hold its sums exactly."""
    ys, xs, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 40))
    rows, width, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    pixel = length + draw(st.integers(0, 5))
    row = (width + xs) * pixel
    spec = Gemm(
        taps=Taps(ys=ys, xs=xs, y_step=row, x_step=pixel, length=length),
        rows=rows,
        width=width,
        last=draw(st.integers(1, width)),
        in_row=row,
        in_pixel=pixel,
        out_row=width * blocks * 64,
        out_pixel=blocks * 64,
        blocks=(2,) * blocks,
        pixels=4,
        chunk=draw(st.integers(1, 3)),
        moved=draw(st.booleans()),
        finish=Finish(out="f32"),
        pairs=True,
        listed=True,
    )
    return spec, draw(st.sampled_from(sorted(WEIGHTS))), draw(st.integers(0, 2**16))


@pytest.mark.skipif(not runs_here(AVX2), reason="this CPU has no AVX2")
@settings(deadline=None)
@given(products())
def test_the_kernel_sums_exactly(case: tuple[Gemm, str, int]) -> None:
    spec, kind, seed = case
    rng, taps, machine = np.random.default_rng(seed), spec.taps, AVX2.for_pairs(True)
    channels = 16 * len(spec.blocks)
    weights = WEIGHTS[kind](rng, (channels, taps.count, taps.length))
    x = aligned(2048 + (spec.rows + taps.ys) * spec.in_row)
    x[:] = 255 if seed % 2 else rng.integers(0, 256, x.shape)
    offsets = [int(each) for each in rng.integers(0, 9, len(spec.blocks))] if spec.moved else None
    affine = pack_affine(np.ones(channels), np.zeros(channels), spec, machine, offsets)
    params = aligned(HEADER_BYTES + affine.nbytes)
    params[HEADER_BYTES:] = affine
    listed = pack_listed(weights, spec, machine, 255, 9.0)
    assert listed is not None
    packed = aligned(listed.nbytes)
    packed[:] = listed
    out = aligned(spec.rows * spec.out_row).view(np.float32)
    kernel = gemm.emit("listed", spec, AVX2)
    kernel.lines[0] = kernel.lines[0].replace("define internal", "define")
    library = Libraries().load([kernel], machine)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 7, *[ctypes.c_int64] * 4)(library.address("listed"))
    call(
        *(array.ctypes.data for array in (x, packed, params, out, out, packed, packed)),
        0,
        spec.rows,
        0,
        len(spec.blocks),
    )
    made = out.reshape(spec.rows, spec.width, channels)
    for y in range(spec.rows):
        for pixel in range(spec.last if y == spec.rows - 1 else spec.width):
            for block in range(len(spec.blocks)):
                start = y * spec.in_row + pixel * spec.in_pixel + (offsets[block] if offsets else 0)
                runs = [
                    x[start + ty * taps.y_step + tx * taps.x_step :][: taps.length]
                    for ty in range(taps.ys)
                    for tx in range(taps.xs)
                ]
                chosen = slice(16 * block, 16 * block + 16)
                expected = (weights[chosen].astype(np.int64) * np.stack(runs)).sum((1, 2))
                np.testing.assert_array_equal(made[y, pixel, chosen], expected)


def test_too_many_steps_are_refused() -> None:
    spec = Gemm(
        taps=Taps(ys=1, xs=1, y_step=0, x_step=0, length=32),
        **dict.fromkeys(("rows", "width", "last", "in_row", "in_pixel", "out_row", "out_pixel", "chunk"), 1),
        blocks=(2,),
        pixels=1,
        finish=Finish(),
    )
    assert pack_listed(np.full((16, 1, 32), 127, np.int8), spec, AVX2.for_pairs(True), 255, 1.5) is None
