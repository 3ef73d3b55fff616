"""A runtime that computes something else than the graph is not used, and `auto` passes it over with a warning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.agreement import check_agreement, nudge
from fxquant.engines.example import example_of
from fxquant.engines.runtimes.onnxruntime import OnnxRuntime

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.table = nn.Conv2d(3, 8, 3), nn.Linear(8, 4), nn.Embedding(2, 8)

    def forward(self, x: Tensor, kind: Tensor) -> dict[str, Tensor]:
        y = self.conv(x).relu().mean((2, 3)) + self.table(kind)
        return {"scores": self.head(y), "best": self.head(y).argmax(1)}


def quantized(engine: str, **options: Any) -> nn.Module:
    example = {"x": 5 + 3 * torch.rand(2, 3, 8, 8), "kind": torch.tensor([0, 1])}
    return fq.quantize(Net().eval(), [example], example_kwargs=example, engine=engine, **options)


def test_examples_span_what_was_calibrated() -> None:
    example = example_of(quantized("reference"))
    assert example["x"].shape == (2, 3, 8, 8)
    assert -0.1 < example["x"].min() < 0.3  # a grid holds zero
    assert 7.5 < example["x"].max() < 8.1
    assert torch.equal(example["kind"], torch.zeros(2, dtype=torch.long))


def test_a_wrong_runtime_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    run = OnnxRuntime._run
    monkeypatch.setattr(OnnxRuntime, "_run", lambda *args: [tensor * -2 for tensor in run(*args)])
    with pytest.raises(fq.FxQuantError, match=r"engine='onnxruntime' computes something else .* agree to -?\d"):
        quantized("onnxruntime")
    with pytest.warns(UserWarning, match="onnxruntime is left out.*something else"):
        found = quantized("auto", target="onnxruntime")
    assert "engine='onnxruntime'" not in repr(found)


class Chaos(nn.Module):
    """A float's last bits decide on the result."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * torch.sin(x * self.factor * 1e6)


def test_what_amplifies_rounding_is_given_slack() -> None:
    x = torch.rand(1000)
    check_agreement(Chaos(1.001), Chaos(), {"x": x}, "some")
    with pytest.raises(fq.FxQuantError):
        check_agreement(Chaos(10.0), Chaos(), {"x": x}, "some")


class Table(nn.Module):
    """Reads whole numbers only; `factor` is a float that the last bits of the result may hang on."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = self.same = nn.Parameter(torch.rand(50, 8))
        self.factor = factor

    def forward(self, index: Tensor) -> Tensor:
        return torch.sin(self.table[index] * self.factor)


def test_inputs_that_are_all_integers() -> None:
    index = torch.arange(40)
    check_agreement(lambda index: Table(1.0)(index) * 1.01, Table(1.0), {"index": index}, "some")
    with pytest.raises(fq.FxQuantError, match=r"agree to 14\.0 dB"):
        check_agreement(lambda index: Table(1.0)(index) * 1.2, Table(1.0), {"index": index}, "some")
    check_agreement(lambda index: Table(1.01e6)(index), Table(1e6), {"index": index}, "some")


class Pixels(Table):
    """Rounds its input first, so that nothing of a nudge is left."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.round().long())


def test_inputs_whose_grid_takes_in_the_nudge() -> None:
    x = torch.arange(40.0)
    check_agreement(lambda x: Pixels(1.01e6)(x), Pixels(1e6), {"x": x}, "some")
    with pytest.raises(fq.FxQuantError, match=r"agree to 14\.0 dB"):
        check_agreement(lambda x: Pixels(1.0)(x) * 1.2, Pixels(1.0), {"x": x}, "some")


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_results_have_to_be_finite_and_of_the_same_shape(wrong: float) -> None:
    x = torch.rand(10)
    with pytest.raises(fq.FxQuantError, match="something else"):
        check_agreement(lambda x: x * wrong, Chaos(), {"x": x}, "some")
    with pytest.raises(fq.FxQuantError, match="something else"):
        check_agreement(lambda x: Chaos()(x)[1:], Chaos(), {"x": x}, "some")


def test_integers_on_a_grid_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.rand(4, 8)
    boundary = {"input_quantized_indexes": [0], "output_quantized_indexes": [0]}
    run = OnnxRuntime._run
    monkeypatch.setattr(OnnxRuntime, "_run", lambda *args: [tensor.flip(0) ^ 77 for tensor in run(*args)])
    prepared = fq.prepare_fx(net, fq.get_default_qconfig_mapping("onnxruntime"), (x,), boundary)
    prepared(x)
    with pytest.raises(fq.FxQuantError, match="something else"):
        fq.convert_fx(prepared, engine="onnxruntime")


@pytest.mark.parametrize("factor", [float("nan"), 0.0])
def test_results_that_say_nothing_are_taken(factor: float) -> None:
    check_agreement(Chaos(), Chaos(factor), {"x": torch.rand(10)}, "some")


def test_nudged_inputs_lie_as_they_did() -> None:
    given = (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.randn(4, 3).t())
    assert [x.stride() for x in nudge(given)] == [x.stride() for x in given]
