"""What kernels can do is tried before it is used."""

from __future__ import annotations

import pytest

from fxquant.engines.onednn.support import TAILS, supports

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


def test_every_tail_is_tried_before_it_is_used() -> None:
    for kind in ("conv2d", "linear"):
        assert supports(kind, "relu", False)
        assert {tail for tail in TAILS if supports(kind, tail, False)}
