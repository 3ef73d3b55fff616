"""What hardware takes: each value gives the reason against something, or nothing."""

from __future__ import annotations

import pytest

import fxquant as fq
from fxquant.config.limits import Grids, Shapes


@pytest.mark.parametrize(
    ("grids", "why"),
    [
        (Grids(), ""),
        (Grids(bits=(4,)), "8 bits, not 4"),
        (Grids(signed=False), "signed, not unsigned"),
        (Grids(symmetric=False), "symmetric, not with a zero point"),
        (Grids(granularity=("per_channel",)), "per_tensor, not per_channel"),
        (Grids(scale="pow2"), "float scales, not pow2"),
        (Grids(ends=(-127, 127)), "[-128, 127], not inside of [-127, 127]"),
    ],
    ids=str,
)
def test_a_spec_is_refused_for_a_reason(grids: Grids, why: str) -> None:
    assert grids.refuse(fq.Spec()) == why


def test_a_shape_is_refused_for_a_reason() -> None:
    assert Shapes(ranks=(4,)).refuse((1, 3)).startswith("a tensor of 2 axes, not 4")
    assert Shapes().refuse((1, 3)) == ""
