"""Simulation, integer reference, dump and ONNX Runtime give the same bits on power-of-two graphs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxquant as fq
from exact_session import exact_session
from fxquant.integers.dump import load_program, write_program
from fxquant.integers.reference import IntegerReference
from integers.random_graphs import Recipe, random_model, recipes

_EXAMPLES = settings().max_examples


def check(recipe: Recipe, seed: int, target: str, runtime: bool) -> None:
    model = random_model(recipe, seed, target)
    reference = fq.integer_reference(model)
    assert reference.notes == ()
    x = 1.5 * torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        expected = model(x).numpy()
    np.testing.assert_array_equal(reference(x), expected)
    with TemporaryDirectory() as folder:
        dumped = IntegerReference(load_program(write_program(reference.program, Path(folder))))
        np.testing.assert_array_equal(dumped(x), expected)
        if runtime:
            pytest.importorskip("onnxruntime")
            session = exact_session(fq.export_onnx(model, Path(folder) / "m.onnx", x))
            (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
            np.testing.assert_array_equal(actual, expected)


@settings(max_examples=max(4, _EXAMPLES // 12))
@given(recipe=recipes(), seed=st.integers(0, 2**20), target=st.sampled_from(("npu", "xint8")))
def test_the_reference_gives_the_bits_of_the_simulation(recipe: Recipe, seed: int, target: str) -> None:
    check(recipe, seed, target, runtime=False)


@settings(max_examples=max(2, _EXAMPLES // 25))
@given(recipe=recipes(), seed=st.integers(0, 2**20), target=st.sampled_from(("npu", "xint8")))
def test_onnx_runtime_gives_them_too(recipe: Recipe, seed: int, target: str) -> None:
    check(recipe, seed, target, runtime=True)
