"""Batches that differ in which arguments they give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import InputError


class Cached(nn.Module):
    """Runs with a cache, and without."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.old, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, cache: Tensor | None = None) -> Tensor:
        hidden = torch.relu(self.start(x))
        made: Tensor = self.end(hidden if cache is None else hidden + self.old(cache))
        return made


X, CACHE = torch.randn(16, 8), torch.randn(16, 8)


@pytest.mark.parametrize(
    "batches",
    [[(X,), (X, CACHE)], [(X, CACHE), X], [{"x": X}, {"x": X, "cache": CACHE}]],
    ids=["grows", "shrinks", "dicts"],
)
def test_quantize_takes_calls_of_both_kinds(batches: list[object]) -> None:
    model = Cached().eval()
    quantized = fq.quantize(model, batches, engine="reference", effort="fast")
    assert fq.explain(quantized).int8_share == 1
    for args in [(X,), (X, CACHE)]:
        assert (quantized(*args) - model(*args)).pow(2).mean() < 1e-3 * model(*args).pow(2).mean()


def test_what_calibrate_leaves_out_of_some_batches_is_told() -> None:
    prepared = fq.prepare_fx(Cached().eval(), fq.get_default_qconfig_mapping(), (X,))
    with pytest.warns(UserWarning, match="1 or 2 values.*sizes='any'"):
        fq.calibrate(prepared, [(X,), (X, CACHE)])
    with pytest.raises(InputError, match="sizes='any', for calls of both kinds"):
        prepared(X, CACHE)
