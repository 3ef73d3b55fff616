"""Models of several graphs: a directory with a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from export.onnx.exporting import quantize, run
from fxquant.export.onnx.regions import _file_name
from fxquant.numerics.affine import sqnr_db

onnx = pytest.importorskip("onnx")


pytest.importorskip("onnxruntime")


pytest.importorskip("onnxscript")


class TwoParts(nn.Module):
    """What lies between its parts depends on values, so each part is a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.second = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden if float(hidden.sum()) > 0 else -hidden)


def test_several_graphs_become_several_files_with_a_manifest(tmp_path: Path) -> None:
    x = torch.randn(2, 8)
    model = quantize(TwoParts(), x)
    folder = fq.export_onnx(model, tmp_path / "parts", x)
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = {row["path"]: row for row in manifest["regions"]}
    assert set(rows) == {"first", "second"}
    hidden = model.first(x)
    for path, given in (("first", x), ("second", hidden)):
        (port,) = rows[path]["inputs"]
        assert port["shape"] == [2, 8]
        actual = run(folder / rows[path]["file"], **{port["name"]: given.detach()})[0]
        assert sqnr_db(model.get_submodule(path)(given), actual) > 45
    with pytest.raises(fq.FxQuantError):
        fq.export_onnx(model, tmp_path / "m.onnx", x)


def test_no_two_regions_have_one_file() -> None:
    taken: list[str] = []
    for path in ("é", "ü", "a b", "a_b", "A_B", "", "model", "x" * 300, "x" * 301):
        taken.append(_file_name(path, taken))
    assert len({name.lower() for name in taken}) == len(taken)
    assert all(len(name) < 220 and name.isascii() for name in taken)
    assert taken[:4] == ["_.onnx", "__2.onnx", "a_b.onnx", "a_b_2.onnx"]
