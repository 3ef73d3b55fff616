"""Bags of embeddings with offsets are plain ops in ONNX, also for bags of other sizes than the example's."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import sqnr_db

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

RUNTIMES = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]
FLAT = torch.tensor([1, 7, 3, 3, 9, 2, 11, 5, 0, 4])


class Bags(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.head = nn.EmbeddingBag(12, 16, **settings), nn.Linear(16, 4)

    def forward(self, index: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.head(self.bag(index, offsets, weights))


@pytest.mark.parametrize(
    ("engine", "settings", "extra"),
    [
        (RUNTIMES[0], {"mode": "sum"}, (torch.linspace(0.1, 1, 10),)),
        (RUNTIMES[-1], {"mode": "mean", "padding_idx": 3}, ()),
        (RUNTIMES[-1], {"mode": "max", "include_last_offset": True}, ()),
    ],
)
def test_runtimes_pool_them(engine: Any, settings: dict[str, Any], extra: tuple[Tensor, ...]) -> None:
    model = Bags(**settings).eval()
    example = (FLAT, torch.tensor([0, 3, 3, 10]), *extra)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), example, target=engine)
    prepared(*example)
    reference, quantized = (fq.convert_fx(prepared, engine=each) for each in ("reference", engine))
    assert f"engine={engine!r}" in repr(quantized)
    for offsets in ([0, 3, 3, 10], [0, 0, 5, 10], [0, 10, 10, 10], [0, 2, 6, 8]):
        args = (FLAT, torch.tensor(offsets), *extra)
        assert sqnr_db(reference(*args), quantized(*args)) > 60
