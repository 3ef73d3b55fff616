"""The range that keeps a percentage of the data, against quantiles of the data itself."""

from __future__ import annotations

import pytest
import torch

from fxquant.config.spec import Spec
from fxquant.numerics.observers.table import make_observer


@pytest.mark.parametrize("symmetric", [True, False])
def test_both_tails_are_cut(symmetric: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4000)
    spec = Spec(observer="percentile", percentile=99.0, symmetric=symmetric, signed=symmetric)
    observer = make_observer(spec, "x")
    observer.update(x)
    low, high = (float(end) for end in observer.range())
    absolute = float(x.abs().quantile(0.99))
    wanted = (-absolute, absolute) if symmetric else (float(x.quantile(0.005)), float(x.quantile(0.995)))
    assert (low, high) == pytest.approx(wanted, rel=0.03)


def test_one_tail_loses_the_whole_share_and_a_hundred_nothing() -> None:
    x = torch.rand(4000)
    for percentile, wanted in ((90.0, 0.9), (100.0, float(x.max()))):
        observer = make_observer(Spec(observer="percentile", percentile=percentile, symmetric=False), "x")
        observer.update(x)
        low, high = observer.range()
        assert float(low) <= 1e-4 and float(high) == pytest.approx(wanted, rel=0.02)
