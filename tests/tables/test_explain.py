"""The account: shares, regions, boundaries, and what was left in float, with the line and a hint."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import StageError
from fxquant.tables.explanation import Explanation
from zoo import ZOO


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else x


class Net(nn.Module):
    """A traceable part, one that is not, and one that the user leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.gate = Gate()
        self.cell = nn.GRUCell(8, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate(self.body(x))
        return self.cell(x) if x.max() < 1e6 else self.unused(x)


def prepared() -> nn.Module:
    torch.manual_seed(0)
    x = torch.rand(2, 8)
    model = Net().eval()
    with torch.no_grad():
        model.body[2].bias.fill_(1.0)  # the gate takes its first arm
    alone = fq.PrepareCustomConfig().set_non_traceable_module_names(["cell"])
    found = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), alone)
    found(x)
    return found


@pytest.mark.parametrize("stage", ["prepared", "converted"])
def test_the_account_of_a_model_in_pieces(stage: str) -> None:
    model = prepared()
    explanation = fq.explain(model if stage == "prepared" else fq.convert_fx(model))
    assert {row.region for row in explanation} == {"body", "gate.fc", "unused"} == set(explanation.regions)
    assert {row.path for row in explanation if row.is_weighted} == {"body.0", "body.2", "gate.fc", "unused"}
    assert dict(explanation.opaque) == {"cell": 2}
    weighted = 4 if stage == "prepared" else 3  # what no data reached does not count
    assert explanation.weighted() == (weighted, weighted + 2)
    assert explanation.int8_share == pytest.approx(weighted / (weighted + 2))
    assert explanation.boundaries == 6


def test_reason_line_and_hint_of_what_is_left() -> None:
    left = {entry.path: entry for entry in fq.explain(prepared()).left}
    line = inspect.getsourcelines(Gate.forward)[1] + 1
    assert f"test_explain.py:{line}" in left["gate"].where
    assert "control flow" in left["gate"].reason
    assert "fxquant.wrap" in left["gate"].hint
    assert left["cell"].weighted == 2
    assert "not reached" in left["unused"].reason
    assert all(entry.hint for entry in left.values())


def test_summary_and_tables() -> None:
    explanation = fq.explain(prepared())
    assert "4 of 6 weighted ops quantized (67%); 3 regions with 6 float boundaries" in explanation.summary()
    text = str(explanation)
    assert "left in float" in text
    assert "test_explain.py:" in text
    assert "gate.fc" in text


@pytest.mark.parametrize("name", ["plain", "resnet", "tied_lm"])
def test_one_region_has_no_boundaries_and_nothing_left(name: str) -> None:
    entry = ZOO[name]
    explanation = fq.explain(fq.quantize(entry.build(), [entry.inputs()]))
    assert (explanation.regions, explanation.boundaries, explanation.left) == (("",), 0, ())
    assert explanation.int8_share == 1.0
    assert "1 region" in explanation.summary()
    assert "left in float" not in str(explanation)
    assert not any("kernels" in row.path for row in explanation)


def test_a_float_model_has_no_account() -> None:
    with pytest.raises(StageError, match="prepare_fx"):
        fq.explain(nn.Linear(2, 2))


def test_a_weight_passed_to_a_wrapped_function_counts_as_float() -> None:
    class Windowed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.hidden = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return opaque_linear(self.first(x), self.hidden.weight)

    x = torch.randn(4, 8)
    prepared = fq.prepare_fx(Windowed().eval(), fq.get_default_qconfig_mapping(), (x,), method="symbolic")
    fq.calibrate(prepared, [x])
    for model in (prepared, fq.convert_fx(prepared), fq.convert_fx(prepared, engine="reference")):
        found = fq.explain(model)
        assert found.weighted() == (1, 2)
        assert [(left.path, "opaque_linear" in left.reason) for left in found.left] == [("hidden", True)]


@torch.fx.wrap
def opaque_linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


def test_says_that_a_recurrent_layer_is_slower_than_float() -> None:
    x = torch.randn(3, 5, 8)
    slow = fq.quantize(torch.nn.LSTM(8, 16).eval(), [(x,)], engine="onednn")
    found = fq.explain(slow)
    assert [(path, "slower than float" in text) for path, text in found.remarks] == [("", True)]
    assert "slower than float" in str(found)


def test_recurrent_layers_of_integer_weights_alone_say_when_they_are_slower() -> None:
    pytest.importorskip("llvmlite")
    x = torch.randn(2, 5, 6)
    for mode, said in (("weight_only", True), ("dynamic", False)):
        model = fq.quantize(nn.LSTM(6, 8, batch_first=True).eval(), [x], mode=mode, engine="native")
        assert ("slower than float" in str(fq.explain(model))) is said


def deep() -> nn.Module:
    """Paths as long as those of real models, and an op that stays in float at the end."""
    names = ["encoder_of_the_pictures", "residual_stage_number_one", "first_convolution"]
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1))
    for name in names:
        outer = nn.Sequential()
        outer.add_module(name, model)
        model = outer
    return nn.Sequential(model, nn.LogSoftmax(1)).eval()


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_paths_are_whole_and_lines_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fq.explain(fq.prepare_fx(deep(), fq.default_qconfig, (torch.randn(1, 3, 4, 4),)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = str(found).splitlines()
    paths = [row.path for row in found if row.is_weighted]
    assert all(any(path in line for line in lines) for path in paths)
    least = 2 * max(map(len, paths)) + 40  # reasons name nodes, which are not broken either
    assert all(len(line) <= max(columns, least) for line in lines if not line.startswith("("))


def test_modules_with_other_letters_in_their_paths_are_named_once() -> None:
    stage = nn.ModuleDict({"block-0": nn.Conv2d(3, 4, 1), "Act": nn.ReLU()})

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stage = stage

        def forward(self, x: Tensor) -> Tensor:
            return self.stage["Act"](self.stage["block-0"](x))

    model = fq.quantize(Named().eval(), [torch.rand(2, 3, 4, 4)])
    explanation = fq.explain(model)
    rows, _, _ = explanation._shown(None)
    assert [(row[0], row[-1].split(";")[0]) for row in rows][1] == ("stage.Act", "fused into stage.block-0")
    assert rows[0][0] == "stage.block-0"


def test_float_comes_first_and_repeated_reasons_once() -> None:
    found = fq.explain(fq.prepare_fx(deep(), fq.default_qconfig, (torch.randn(1, 3, 4, 4),)))
    text = str(found)
    assert text.index("LogSoftmax") < text.index("conv2d")
    weighted = [row.reason for row in found if row.is_weighted]
    assert weighted[0] == weighted[1] and text.count(weighted[0]) == 1
    assert "global" not in text  # the only rule
    assert "path" in text.splitlines()[1]


def test_what_is_said_of_one_op_does_not_repeat_its_spec() -> None:
    spec = "weight s8 sym per_channel0 minmax"
    rows = [
        dataclasses.replace(row, reason=f"{spec}; GPTQ: {number} dB") if row.is_weighted else row
        for number, row in enumerate(fq.explain(prepared()))
    ]
    text = str(Explanation(rows=tuple(rows)))
    assert text.count(spec) == 1 and text.count("(1); GPTQ: ") == sum(row.is_weighted for row in rows) > 1


def test_a_table_of_one_status() -> None:
    found = fq.explain(fq.prepare_fx(deep(), fq.default_qconfig, (torch.randn(1, 3, 4, 4),)))
    assert found.table(only="float").row_count == sum(row.status == "float" for row in found) == 1
    assert found.table().row_count == len(found)
    assert str(found.table(only="dynamic")).startswith("no op is dynamic: ")
    assert "LogSoftmax" in str(found.table(only="float")) and "conv2d" not in str(found.table(only="float"))
    with pytest.raises(fq.ConfigError, match="weight_only"):
        found.table(only="int7")


def test_html_has_the_rows_and_escapes_text() -> None:
    text = fq.explain(prepared())._repr_html_()
    assert "<td>body.0</td>" in text
    assert "left in float" in text
    assert "<root>" not in text
