"""Numbers that turn sums into outputs are off by next to nothing, however the sums begin."""

from __future__ import annotations

import numpy as np
import pytest

from fxquant.engines.native.finish import GREATEST_LANDED, LEAST_LANDED, MOST_MAGIC, Finish, affine_rows
from fxquant.engines.native.vector import MAGIC

PLAIN, MAGICAL, LANDED = Finish(), Finish(magic=True), Finish(magic=True, landed=True)


@pytest.mark.parametrize("scales", ["any", "powers of two"])
@pytest.mark.parametrize("spec", [PLAIN, MAGICAL, LANDED], ids=["plain", "magic", "landed"])
def test_what_a_sum_begins_with_is_taken_back(spec: Finish, scales: str) -> None:
    rng = np.random.default_rng(0)
    scale = 2 ** rng.uniform(-16, -6, 2000) if scales == "any" else 2.0 ** rng.integers(-16, -6, 2000)
    bias = rng.normal(0, 60, 2000)
    rows = affine_rows(scale, bias, spec)
    starts = rows[2] if spec.magic else np.zeros(2000, np.float32)
    assert (starts == np.rint(starts)).all() and starts.max() + MOST_MAGIC <= 2**24
    off = starts.astype(np.float64) * rows[0] + rows[1] - bias - (MAGIC if spec.landed else 0.0)
    assert np.abs(rows[0] / scale - 1).max() < 1e-6
    assert np.abs(off).mean() < 5e-5 and np.abs(off).max() < (3e-3 if spec.landed else 5e-4)  # of a step


@pytest.mark.parametrize("edge", [LEAST_LANDED, GREATEST_LANDED])
def test_sums_land_on_steps_at_the_ends_of_the_scales(edge: float) -> None:
    rng = np.random.default_rng(0)
    scale = edge * rng.uniform(1.0, 1.01, 2000)
    bias = rng.normal(0, 60, 2000)
    rows = affine_rows(scale, bias, LANDED).astype(np.float64)
    assert (rows[1] == np.rint(rows[1])).all() and rows[1].min() >= 2**23
    assert np.abs(rows[2] * rows[0] + rows[1] - bias - MAGIC).mean() < 5e-4


def test_channels_without_weights_have_their_bias() -> None:
    scale, rest, _ = affine_rows(np.zeros(1), np.array([3.25]), MAGICAL)[:, 0]
    assert scale == 0 and rest == 3.25


def test_channels_with_next_to_no_weights_have_their_bias_rounded() -> None:
    scale, rest, _ = affine_rows(np.array([1e-12]), np.array([3.25]), LANDED)[:, 0]
    assert scale == 0 and rest == MAGIC + 3
