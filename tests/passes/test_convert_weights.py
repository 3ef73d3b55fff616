"""Tables of nn.EmbeddingBag are stored as integers; bags are made of the rows that are looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

FLAT, OFFSETS = torch.tensor([1, 7, 3, 3, 9, 2, 11, 5, 0, 4]), torch.tensor([0, 3, 3, 7])
ROWS = torch.tensor([[3, 1, 4], [1, 5, 9], [3, 3, 3]])
CASES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "rows": ({}, (ROWS,)),
    "rows_padded": ({"padding_idx": 3}, (ROWS,)),
    "offsets": ({}, (FLAT, OFFSETS)),
    "offsets_padded": ({"padding_idx": 3}, (FLAT, OFFSETS)),
    "last_offset": ({"include_last_offset": True}, (FLAT, torch.tensor([0, 3, 7, 10]))),
    "weights": ({}, (FLAT, OFFSETS, torch.linspace(0.1, 1, 10))),
    "rows_weights": ({}, (ROWS, None, torch.linspace(0.1, 1, 9).reshape(3, 3))),
}


class Bags(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.head = nn.EmbeddingBag(12, 16, **settings), nn.Linear(16, 4)

    def forward(self, index: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        return self.head(self.bag(index, offsets, weights))


class Branching(Bags):
    def forward(self, index: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        y = self.bag(index, offsets, weights)
        return self.head(y if y.sum() < 1e9 else -y)


class Functional(Bags):
    def forward(self, index: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        bag = self.bag
        settings = {"mode": bag.mode, "include_last_offset": bag.include_last_offset, "padding_idx": bag.padding_idx}
        return self.head(F.embedding_bag(index, bag.weight, offsets, per_sample_weights=weights, **settings))


def statuses(model: nn.Module) -> dict[str, str]:
    return {row.path: row.status for row in fq.explain(model) if row.is_weighted}


@pytest.mark.broad
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("case", CASES)
def test_tables_are_integers_in_every_capture(case: str, mode: str, tmp_path: Path) -> None:
    settings, args = CASES[case]
    if mode != "sum" and len(args) == 3:
        pytest.skip("torch has weights for sums only")
    for kind, method in ((Bags, "symbolic"), (Bags, "export"), (Functional, "auto"), (Branching, "auto")):
        model = kind(mode=mode, **settings).eval()
        quantized = fq.quantize(model, [args], example_inputs=args, method=method)
        assert sqnr_db(model(*args), quantized(*args)) > 25
        assert statuses(quantized) == {"bag": "weight_only", "head": "int8"}
        assert quantized.bag.weight.dtype in (torch.int8, torch.float32)  # a region reads as floats
    loaded = fq.load(fq.save(quantized, tmp_path / "model"), model)
    assert torch.equal(loaded(*args), quantized(*args))


def test_training_and_half_precision() -> None:
    model = Bags(mode="mean", padding_idx=3).train()
    trained = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (FLAT, OFFSETS))
    trained(FLAT, OFFSETS).sum().backward()
    assert statuses(fq.convert_fx(trained.eval())) == {"bag": "weight_only", "head": "int8"}
    assert not torch.equal(trained.bag.weight.grad[1], torch.zeros(16))


def test_a_table_that_changes_itself_stays_in_float() -> None:
    model = Bags(max_norm=1.0).eval()
    before = model.bag.weight.detach().clone()
    quantized = fq.quantize(model, [(ROWS,)])
    assert statuses(quantized) == {"bag": "float", "head": "int8"}
    assert fq.explain(quantized).int8_share == 0.5
    assert torch.equal(model.bag.weight, before)
