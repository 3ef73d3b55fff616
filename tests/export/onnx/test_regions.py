"""Models of several graphs: a directory with a manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from export.onnx.exporting import quantize, run
from fxquant.export.onnx import export
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


def read_set(folder: Path) -> dict[str, bytes]:
    """What a reader finds: the bytes of each region, by the manifest."""
    rows = json.loads((folder / "manifest.json").read_text())["regions"]
    return {row["path"]: (folder / row["file"]).read_bytes() for row in rows}


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_an_export_that_is_killed_leaves_one_whole_set(tmp_path: Path, last: int, monkeypatch: Any) -> None:
    x = torch.randn(2, 8)
    model = quantize(TwoParts(), x)
    folder = fq.export_onnx(model, tmp_path / "parts", x)
    (folder / "notes.txt").write_text("the user's")
    old = read_set(folder)
    for part in ("first", "second"):
        model.get_submodule(part).get_submodule("0").weight_scale.mul_(2)
    replaced: list[str] = []
    child = os.fork()
    if child == 0:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if len(replaced) == last + 1:  # the first is the list of what is written
                os._exit(9)
            replaced.append(str(target))
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(Path, "replace", lambda self, target: replace(self, target))
        fq.export_onnx(model, folder, x)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (9 if last < 3 else 0)
    left = read_set(folder)
    assert (left == old) == (last < 3)
    assert all(left[path] != old[path] for path in old) == (last == 3)
    fq.export_onnx(model, folder, x)
    assert all(read_set(folder)[path] != old[path] for path in old)
    named = [row["file"] for row in json.loads((folder / "manifest.json").read_text())["regions"]]
    assert {file.name for file in folder.iterdir()} == {"manifest.json", "notes.txt", *named}


def test_an_export_that_fails_leaves_the_set_that_was_there(tmp_path: Path, monkeypatch: Any) -> None:
    x = torch.randn(2, 8)
    model = quantize(TwoParts(), x)
    folder = fq.export_onnx(model, tmp_path / "parts", x)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    write, count = export._write, iter(range(2))

    def fail(*args: Any) -> None:
        if next(count):
            raise fq.errors.ConfigError("cannot write: No space left on device.")
        write(*args)

    monkeypatch.setattr(export, "_write", fail)
    with pytest.raises(fq.errors.ConfigError, match="No space"):
        fq.export_onnx(model, folder, x)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
