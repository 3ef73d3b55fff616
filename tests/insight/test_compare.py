"""The numeric suite: every stage, every engine, several regions; the numbers against ones worked out by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import ConfigError, StageError
from fxquant.insight.comparison import Comparison


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x))) + x


class Net(nn.Module):
    """Batch norms to fold, a residual, a block that is called twice, an op that is only a function."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.block = Block(4)
        self.again = nn.Conv2d(4, 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(torch.relu(self.stem(x)))
        x = self.relu(self.again(self.again(x)))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    model(torch.randn(16, 3, 8, 8))  # batch statistics that are not 0 and 1
    return model.eval()


@pytest.fixture(scope="module")
def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 3, 8, 8) for _ in range(4)]


def prepare(model: nn.Module, data: list[Tensor]) -> nn.Module:
    return fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data[0],)), data)


def sqnr(wanted: Tensor, found: Tensor) -> float:
    return float(10 * torch.log10((wanted**2).sum() / ((found - wanted) ** 2).sum()))


def test_outputs_and_layers_are_what_hooks_see(net: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.quantize(net, data, engine="reference")
    found = fq.compare(net, quantized, data)
    with torch.no_grad():
        wanted, got = (torch.cat([model(x) for x in data]) for model in (net, quantized))
    assert found.output_sqnr == pytest.approx(sqnr(wanted, got), abs=1e-3)
    assert found["head"].sqnr == pytest.approx(found.output_sqnr, abs=1e-3)
    assert found["head"].max_error == pytest.approx(float((got - wanted).abs().max()), rel=1e-4)
    paths = [row.path for row in found]
    assert paths.count("again") == 2  # both calls
    assert {"stem", "block.conv", "block.act", "block", "relu", "head"} <= set(paths)
    assert found["block.conv"].sqnr > 15  # against the batch norm that was folded into it
    assert found["block.conv"].own_sqnr > found["block.conv"].sqnr  # what comes from before is not its own
    assert sum(row.enters for row in found) == pytest.approx(1)
    assert found.worst(1)[0].enters == max(row.enters for row in found)


@pytest.mark.broad
@pytest.mark.parametrize("stage", ["calibrated", "frozen", "trained", "onednn", "onnxruntime", "native", "loaded"])
def test_every_stage_and_engine(net: nn.Module, data: list[Tensor], stage: str, tmp_path: object) -> None:
    if stage == "trained":
        model = fq.prepare_qat_fx(net.train(), fq.get_default_qat_qconfig_mapping(), (data[0],))
        net.eval()
        fq.calibrate(model.eval(), data)
    elif stage in ("calibrated", "frozen"):
        model = prepare(net, data)
        model = fq.freeze(model) if stage == "frozen" else model
    else:
        model = fq.quantize(net, data, engine="onednn" if stage == "loaded" else stage)
        if stage == "loaded":
            fq.save(model, f"{tmp_path}/net.fq")
            model = fq.load(f"{tmp_path}/net.fq")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    found = fq.compare(net, model, data)
    assert found.output_sqnr > 20
    assert {"stem", "block.conv", "block", "again", "head"} <= {row.path for row in found}
    assert {row.path for row in found.weights} == {"stem", "block.conv", "again", "head"}
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())


def test_weights_before_and_after(net: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.quantize(net, data)
    row = fq.compare(net, quantized, data).weight("block.conv")
    norm = net.block.bn
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    torch.testing.assert_close(row.before, net.block.conv.weight.detach())
    torch.testing.assert_close(row.fused, (net.block.conv.weight * gain.reshape(-1, 1, 1, 1)).detach())
    torch.testing.assert_close(row.quantized, quantized.block.conv.weight().dequantize())
    assert row.sqnr == pytest.approx(sqnr(row.fused, row.quantized), abs=1e-3)
    with pytest.raises(ConfigError, match="has no quantized weight"):
        fq.compare(net, quantized, data[:1]).weight("block.bn")


def test_ranges_against_what_calibration_saw(net: nn.Module, data: list[Tensor]) -> None:
    quantized = fq.quantize(net, data)
    usual, wide = fq.compare(net, quantized, data), fq.compare(net, quantized, [4 * x for x in data])
    low, high = usual["x"].calibrated
    outside = sum(int(((x < low) | (x > high)).sum()) for x in data)
    assert usual["x"].clipped == pytest.approx(outside / sum(x.numel() for x in data), abs=2e-3)
    assert wide["x"].clipped > 0.1 > usual["x"].clipped
    assert "leave the calibrated range" in wide.summary()
    times = max(x.abs().max().item() for x in data) * 4 / max(-low, high)
    assert wide["x"].beyond == f"x ({wide['x'].clipped:.1%}, up to {times:.1f} times its end)"
    grown = fq.compare(net, quantized, [data[0] * k for k in (1, 2, 3, 4)])
    assert grown["x"].widened == 4 and grown["x"].spread > 0.3
    assert "still grew" in grown.summary()
    assert fq.compare(net, quantized, [data[0]] * 4)["x"].widened == 1


def test_batches_that_are_alike_are_not_called_too_few(net: nn.Module, data: list[Tensor]) -> None:
    row = fq.compare(net, fq.quantize(net, data, engine="reference"), data[:1]).rows[0]
    rows = [dataclasses.replace(row, batches=4, widened=1 + number % 4) for number in range(40)]
    late = [dataclasses.replace(row, batches=4, widened=4) for _ in range(40)]
    assert "still grew" not in Comparison(rows=(*rows, *late[:10]), weights=(), output_sqnr=30.0, batches=4).summary()
    assert "still grew" in Comparison(rows=(*rows, *late, *late), weights=(), output_sqnr=30.0, batches=4).summary()


class Pieces(nn.Module):
    """Does not trace as a whole; one arm is never taken."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.idle = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        if x.sum() > 1e9:
            x = self.idle(x)
        return self.lstm(x)[0]


def test_several_regions() -> None:
    torch.manual_seed(0)
    model, data = Pieces().eval(), [{"x": torch.randn(2, 3, 6), "labels": torch.ones(2)} for _ in range(2)]
    found = fq.compare(model, fq.quantize(model, data), data)
    assert {"body.0", "body.2"} <= {row.path for row in found}
    assert any(row.path.startswith("lstm.") for row in found)
    assert found.output_sqnr > 20
    assert all(math.isfinite(row.sqnr) for row in found)
    assert [path.partition(".")[0] for path, _ in found.dead] == ["idle"]
    assert "saw no data" in found.summary()


class Written(nn.Module):
    """Fills tensors by places: a mask by numbers, as shifted windows do, and one by what a layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros((4, 2))
        mask[1:, :] = 3.0
        wide = x.new_zeros((x.shape[0], 8))
        wide[:, :4] = self.first(x)[:, :4]
        return self.last(torch.relu(wide) + mask.reshape(8))


def test_what_is_written_by_places_makes_no_error_of_its_own() -> None:
    torch.manual_seed(0)
    model, x = Written().eval(), torch.randn(16, 8)
    quantized = fq.quantize(model, [x], engine="reference", precision="int8")
    before = quantized(x)
    found = fq.compare(model, quantized, [x])
    assert all(row.own_sqnr is None or row.own_sqnr > 30 for row in found)
    assert torch.equal(quantized(x), before)


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cumsum(self.first(x), 1))


def test_an_op_that_is_not_repeated_is_not_blamed_for_what_came_before() -> None:
    torch.manual_seed(0)
    model, x = Unknown().eval(), torch.randn(16, 8)
    qconfig = fq.QConfig(activation=fq.Spec(bits=4), weight=fq.Spec(bits=3))
    asked = {"precision": "int8", "effort": "fast", "qconfig_mapping": {"": qconfig}}
    quantized = fq.quantize(model, [x], engine="reference", **asked)
    (row,) = [row for row in fq.compare(model, quantized, [x]) if row.kind == "cumsum"]
    assert row.own_sqnr is not None
    assert row.sqnr < row.own_sqnr - 3  # that of rounding its result


def test_forms(net: nn.Module, data: list[Tensor]) -> None:
    found = fq.compare(net, fq.quantize(net, data), iter(data), num_batches=2)
    assert found.batches == 2
    assert json.loads(found.to_json())["rows"][0]["path"] == found.rows[0].path
    assert len(list(csv.DictReader(io.StringIO(found.to_csv())))) == len(found)
    assert "<td>block.conv</td>" in found._repr_html_()
    assert "block.conv" in str(found)


def test_another_model_is_no_float_model_of_this_one(net: nn.Module, data: list[Tensor]) -> None:
    with pytest.raises(StageError, match=r"none of the 5 layers .* a Block\. Give the model"):
        fq.compare(Block(3).eval(), fq.quantize(net, data), data)


class Classes(nn.Module):
    """Returns integers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).argmax(1)


def test_outputs_that_cannot_be_compared_are_not_called_equal() -> None:
    torch.manual_seed(0)
    model, data = Classes().eval(), [torch.randn(8, 4)]
    found = fq.compare(model, fq.quantize(model, data), data)
    assert math.isnan(found.output_sqnr) and found["head"].sqnr > 20
    assert found.summary().startswith("outputs: none that can be compared, over 1 batch, ")


def test_what_is_refused(net: nn.Module, data: list[Tensor]) -> None:
    with pytest.raises(StageError, match="float model first"):
        fq.compare(fq.quantize(net, data), net, data)
    with pytest.raises(StageError, match="converted model"):
        fq.compare(net, net, data)
    with pytest.raises(ConfigError, match="nothing was compared"):
        fq.compare(net, fq.quantize(net, data), data)["layer9"]


def test_in_a_narrow_terminal_columns_give_way(
    net: nn.Module, data: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fq.compare(net, fq.convert_fx(prepare(net, data), engine="reference"), data)
    whole = str(found)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = str(found).splitlines()
    tables = [line for line in lines if line.startswith(("path", "stem", "block", "again", "head"))]
    assert len(tables) > 8 and max(map(len, tables)) <= 80
    assert "cosine" in whole and "cosine" not in next(line for line in tables if line.startswith("path"))
    assert any("left out to fit" in line and "cosine" in line for line in lines) and "clipped" in str(found)
