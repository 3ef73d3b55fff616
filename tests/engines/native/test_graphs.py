"""Graphs with more than kernels: sizes, checks, constants, code of the model, layers that are graphs themselves."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.errors import InputError
from fxquant.graph.region import Region, engine_of, lowering_of, regions
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native.runner import NativeRunner


def both(model: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        native = fq.convert_fx(prepared, engine=fq.Native(cache=None))
    return fq.convert_fx(prepared, engine="reference"), native


def runner_of(model: nn.Module) -> NativeRunner:
    assert isinstance(model, Region)
    found = lowering_of(model).runner
    assert isinstance(found, NativeRunner)
    return found


class PaddedAsInTensorFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        pads = [max((math.ceil(size / 2) - 1) * 2 + 3 - size, 0) for size in x.shape[-2:]]
        x = F.pad(x, [pads[1] // 2, pads[1] - pads[1] // 2, pads[0] // 2, pads[0] - pads[0] // 2])
        return self.conv(x).relu()


class PaddedBetween(nn.Module):
    """Zeros on two sides of an image, which two layers read, and on all sides of one that is pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, stride=2, groups=24)
        self.second, self.pool, self.last = nn.Conv2d(24, 24, 1), nn.MaxPool2d(2), nn.Conv2d(24, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        y = self.depthwise(F.pad(x, [0, 1, 0, 1]))
        pooled = self.pool(F.pad(self.second(x).relu(), [1, 0, 0, 1]))
        return self.last(y + pooled)


class Gated(nn.Module):
    """Channels that fill vectors of all sizes, each times a factor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(3, 112, 3, padding=1), nn.Conv2d(112, 112, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x))
        return x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y.relu() if x.shape[0] > 1 else y


class Positions(nn.Module):
    """Returns a tensor that does not depend on the input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lin, self.gamma = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = self.table(torch.arange(x.shape[1], device=x.device))
        return self.lin((self.lin(x) * self.gamma + places).relu()), places * 2


def test_sizes_are_computed_once() -> None:
    x = torch.randn(2, 3, 9, 12)
    reference, native = both(PaddedAsInTensorFlow(), x)
    assert sqnr_db(reference(x), native(x)) > 30
    (program,) = runner_of(native).programs.values()
    assert program.levels == [0] and not any(program.outside.values())


def test_zeros_around_an_image_are_its_border() -> None:
    x = torch.randn(2, 3, 10, 12)
    reference, native = both(PaddedBetween(), x)
    assert sqnr_db(reference(x), native(x)) > 40
    (program,) = runner_of(native).programs.values()
    assert not any(op.label.startswith("zeros") for op in program.placement.ops)


def test_factors_of_channels() -> None:
    x = torch.randn(2, 3, 5, 7)
    reference, native = both(Gated(), x)
    expected, actual = reference(x), native(x)
    step = float((expected.max() - expected.min()) / 255)
    assert runner_of(native).programs and float((expected - actual).abs().max()) < 1.6 * step


def test_checks_hold_for_each_batch() -> None:
    x = torch.randn(2, 3, 8, 8)
    reference, native = both(Branches(), x)
    assert sqnr_db(reference(x), native(x)) > 30
    assert runner_of(native).programs
    for model in (reference, native):
        with pytest.raises(InputError, match="depends on"):
            model(x[:1])
    assert sqnr_db(reference(x), native(x)) > 30


def test_constants_are_computed_once_and_not_shared() -> None:
    x = torch.randn(2, 8, 4)
    reference, native = both(Positions(), x)
    with torch.no_grad():
        for _ in range(2):
            for expected, actual in zip(reference(x), native(x), strict=True):
                assert expected.shape == actual.shape and sqnr_db(expected, actual) > 30
                actual.zero_()
    assert runner_of(native).programs


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * float(x.sum() != 0)


class CallsCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.count, self.b = nn.Linear(4, 4), Counts(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.count(self.a(x)))


def test_code_of_the_model_is_called_once_a_call() -> None:
    x = torch.randn(2, 4)
    custom = {"non_traceable_module_class": [Counts]}
    prepared = fq.prepare_fx(CallsCode().eval(), fq.get_default_qconfig_mapping("x86"), (x,), custom)
    prepared(x)
    native = fq.convert_fx(prepared, engine=fq.Native(cache=None))
    before = native.get_submodule("count").calls
    for _ in range(3):
        native(x)
    assert native.get_submodule("count").calls == before + 3


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.lstm, self.b = nn.Linear(6, 8), nn.LSTM(8, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(self.lstm(self.a(x).relu())[0])
        return found


def test_a_layer_that_is_a_graph_itself() -> None:
    x = torch.randn(3, 7, 6)
    reference, native = both(Sequence(), x)
    assert all(engine_of(region) == "native" for _, region in regions(native))
    for batch in (3, 1, 5):
        x = torch.randn(batch, 7, 6)
        assert sqnr_db(reference(x), native(x)) > 30


def test_what_runs_elsewhere_is_explained() -> None:
    x = torch.randn(1, 4, 5, 5)
    _, native = both(nn.Sequential(nn.ConvTranspose2d(4, 4, 3, groups=2), nn.ReLU()), x)
    assert engine_of(native) == "onednn"  # type: ignore[arg-type]
    (row,) = (row for row in fq.explain(native) if row.kind == "conv_transpose2d")
    assert "on onednn: it has no op with a native kernel" in row.reason


class Placed(nn.Module):
    """Positions that are counted in the graph, and tensors that go to the device of others, or to one by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.a = nn.Linear(6, 8), nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        places = torch.ones(y.shape[:2], device=y.device).cumsum(1).long()
        last: Tensor = self.a((y + self.places(places).to(y.device)).to("cpu").relu())
        return last


def test_tensors_that_go_to_a_device() -> None:
    x = torch.randn(3, 7, 6)
    reference, native = both(Placed(), x)
    assert engine_of(native) == "native"  # type: ignore[arg-type]
    for batch in (3, 1):
        assert torch.allclose(reference(x[:batch]), native(x[:batch]), atol=1e-5)


def test_biases_that_float32_loses_beside_large_sums_do_not_run_natively() -> None:
    torch.manual_seed(0)
    columns = 10 ** torch.linspace(-3, 6, 12)  # of a table whose columns have units of their own
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).eval()
    with torch.no_grad():
        model[0].weight /= columns
    data = [torch.randn(64, 12) * columns for _ in range(2)]
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data[0],))
    fq.calibrate(prepared, data)
    made, wanted = (fq.convert_fx(prepared, engine=engine) for engine in ("native", "reference"))
    assert torch.allclose(made(data[0]), wanted(data[0]), atol=1e-6)
    why = {row.path: row.reason for row in fq.explain(made)}
    assert "too large to be taken back in float32" in why["0"]
    assert not any("computes something else" in reason for reason in why.values())
