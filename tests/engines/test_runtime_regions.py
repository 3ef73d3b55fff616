"""A model of several regions runs them in a runtime, inside its own Python, and in oneDNN where a call is new."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.core.graph import regions
from fxquant.engines.onnxruntime import OnnxRuntimeModule
from fxquant.engines.runtime_regions import RegionRunner
from fxquant.numerics.affine import sqnr_db

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


ENGINES: tuple[Any, ...] = ("onednn", "reference", "onnxruntime")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> tuple[Tensor, list[Tensor]]:
        y = self.b(self.a(x).relu()) * scale
        return (y if mask is None else y * mask), [x.mean(-1)]


class Branches(nn.Module):
    """Python decides by the data, so this does not trace; `mlps` are regions, and `head`, which is one product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mlps = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        means = []
        for mlp in self.mlps:
            y, more = mlp(x, None, scale=0.5)
            x = x + y if float(y.sum()) > -1e9 else x
            means += more
        return {"out": self.head(x), "mean": torch.stack(means)}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Branches().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of a runtime got."""
    seen: list[int] = []
    run = OnnxRuntimeModule._run

    def count(self: OnnxRuntimeModule, session: object, arrays: list[object]) -> list[Tensor]:
        seen.append(len(arrays))
        return run(self, session, arrays)

    monkeypatch.setattr(OnnxRuntimeModule, "_run", count)
    return seen


def agree(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> bool:
    return all(sqnr_db(expected[name].detach(), actual[name]) > 40 for name in ("out", "mean"))


def test_regions_run_in_the_runtime(model: nn.Module, x: Tensor, calls: list[int], tmp_path: Path) -> None:
    reference = fq.quantize(model, [x], engine="reference", target="onnxruntime")
    found = fq.quantize(model, [x], engine="onnxruntime")
    runners = {path: type(region._region.runner) for path, region in regions(found)}
    assert [path for path, runner in runners.items() if runner is RegionRunner] == ["mlps.0", "mlps.1"]
    assert "head" in runners
    assert isinstance(found.mlps[0], Block)  # type: ignore[index]
    for twin in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        for rows in (x, torch.cat((x, x))):
            calls.clear()
            assert agree(reference(rows), twin(rows))
            assert calls == [1, 1]
    again = fq.load(fq.save(found, tmp_path / "model"), model, engine="onnxruntime")
    assert agree(reference(x), again(x))


def test_calls_unlike_the_example_run_on_onednn(model: nn.Module, x: Tensor, calls: list[int]) -> None:
    found = fq.quantize(model, [x], engine="onnxruntime")
    expected = fq.quantize(model, [x], target="onnxruntime")
    calls.clear()
    assert agree(expected(x[:, :3]), found(x[:, :3]))  # another length
    seen: list[str] = []
    handle = found.mlps[0].register_forward_hook(lambda *_: seen.append("mlps.0"))  # type: ignore[union-attr,index]
    assert calls == []
    found(x)
    assert (seen, len(calls)) == (["mlps.0"], 1)
    handle.remove()
    found(x)
    assert len(calls) == 3


def test_what_a_runtime_cannot_take_stays_on_onednn(
    model: nn.Module, x: Tensor, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = OnnxRuntimeModule._run
    monkeypatch.setattr(OnnxRuntimeModule, "_run", lambda *args: [tensor + 9 for tensor in counted(*args)])
    with pytest.raises(fq.FxQuantError, match="something else"):
        fq.quantize(model, [x], engine="onnxruntime")

    def fail_once(self: OnnxRuntimeModule, graph: object) -> None:
        monkeypatch.setattr(OnnxRuntimeModule, "_adapt", lambda *_: None)
        raise fq.FxQuantError("no such op")

    monkeypatch.setattr(OnnxRuntimeModule, "_run", counted)
    monkeypatch.setattr(OnnxRuntimeModule, "_adapt", fail_once)
    with pytest.warns(UserWarning, match=r"module 'mlps.0' runs on onednn, not onnxruntime. no such op"):
        found = fq.quantize(model, [x], engine="onnxruntime")
    calls.clear()
    assert sqnr_db(model(x)["out"].detach(), found(x)["out"]) > 25
    assert calls == [1]


def test_one_graph_runs_in_the_runtime_and_at_other_sizes_on_onednn(
    calls: list[int], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(2, 3, 8, 8)
    found = fq.quantize(net, [x], engine="onnxruntime")
    assert "engine='onnxruntime'" in repr(found)
    assert len(fq.explain(found)) > 0
    calls.clear()
    for given in (x, x[:1], torch.randn(1, 3, 9, 12), torch.randn(2, 3, 7, 7)):
        assert sqnr_db(net(given).detach(), found(given)) > 20
    assert len(calls) == 2
    assert [record.message for record in caplog.records if "onednn" in record.message] == [
        "'Sequential' runs on onednn, not onnxruntime, when called like this: an input is (1, 3, 9, 12) float32; "
        "the example's was torch.float32, of sizes (None, 3, 8, 8) (None is any)"
    ]
    with pytest.raises(RuntimeError, match=r"weight of \(4, 3, 3, 3\) cannot take an input of \(2, 4, 8, 8\)"):
        found(torch.randn(2, 4, 8, 8))
    fq.save(found, tmp_path / "net")
    assert sqnr_db(found(x), fq.load(tmp_path / "net")(x)) > 30


def test_a_runtime_that_fails_is_not_asked_again(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), torch.randn(2, 8)
    found = fq.quantize(net, [x], engine="onnxruntime")
    expected, counted = found(x), OnnxRuntimeModule._run
    calls.clear()

    def fail(*args: Any) -> Any:
        counted(*args)
        raise ValueError("out of memory")

    monkeypatch.setattr(OnnxRuntimeModule, "_run", fail)
    for _ in range(3):
        assert sqnr_db(expected, found(x)) > 40
    assert calls == [1]


def test_explains_the_engine_that_runs() -> None:
    """oneDNN lacks dilated transposed convolutions; that is of no concern to another runtime."""
    net, x = nn.Sequential(nn.ConvTranspose2d(3, 4, 3, dilation=2), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    by_engine = {engine: fq.explain(fq.quantize(net, [x], engine=engine, target="x86")) for engine in ENGINES}
    found = {engine: [row.status for row in rows if row.kind != "relu"] for engine, rows in by_engine.items()}
    assert found == {"onednn": ["float"], "reference": ["int8"], "onnxruntime": ["int8"]}


def test_auto_takes_models_of_several_regions(model: nn.Module, x: Tensor) -> None:
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    for found in (fq.quantize(model, [x], engine="auto"), fq.convert_fx(prepared, engine="auto")):
        assert sqnr_db(model(x)["out"].detach(), found(x)["out"]) > 25
