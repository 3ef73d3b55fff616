"""Numbers that turn sums into outputs are off by next to nothing, however the sums begin."""

from __future__ import annotations

import numpy as np
import pytest

from fxquant.engines.native.finish import MOST_MAGIC, affine_rows


@pytest.mark.parametrize("scales", ["any", "powers of two"])
@pytest.mark.parametrize("magic", [False, True])
def test_what_a_sum_begins_with_is_taken_back(magic: bool, scales: str) -> None:
    rng = np.random.default_rng(0)
    scale = 2 ** rng.uniform(-16, -6, 2000) if scales == "any" else 2.0 ** rng.integers(-16, -6, 2000)
    bias = rng.normal(0, 60, 2000)
    rows = affine_rows(scale, bias, magic)
    starts = rows[2] if magic else np.zeros(2000, np.float32)
    assert (starts == np.rint(starts)).all() and starts.max() + MOST_MAGIC <= 2**24
    off = starts.astype(np.float64) * rows[0] + rows[1] - bias
    assert np.abs(rows[0] / scale - 1).max() < 1e-6
    assert np.abs(off).max() < 5e-4 and np.abs(off).mean() < 5e-5  # of a step; 0.008 and 0.0007 with one start for all


def test_channels_without_weights_have_their_bias() -> None:
    scale, rest, _ = affine_rows(np.zeros(1), np.array([3.25]), True)[:, 0]
    assert scale == 0 and rest == 3.25
