"""The forecast says what conversion then does, and names the rule that refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fxquant as fq
from fxquant.cli import app
from fxquant.targets import by_name
from zoo import ZOO


@pytest.mark.parametrize("target", ["xnnpack", "xint8"])
@pytest.mark.parametrize("name", ["squeeze_excite", "vision_transformer"])
def test_it_is_what_conversion_does(name: str, target: str) -> None:
    entry = ZOO[name]
    model = entry.build().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = fq.forecast(model, target, entry.inputs())
    made = fq.quantize(model, [entry.inputs()], target=target, engine="reference")
    assert {row.node: row.on_device for row in found} == {row.node: row.status == "int8" for row in fq.explain(made)}
    assert len(found) and all(row.rule and row.reason for row in found.refused)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_it_names_the_rule_that_refuses() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, groups=2)
            self.c, self.norm = nn.Conv2d(4, 4, 1), nn.GroupNorm(1, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.c(self.b(nn.functional.gelu(self.a(x)))))

    found = {row.kind: row for row in fq.forecast(Net(), "xnnpack", torch.randn(1, 3, 8, 8))}
    rules = {kind: row.rule for kind, row in found.items()}
    assert rules == {"conv2d": "", "gelu": "kinds", "conv_transpose2d": "kernels", "group_norm": "kinds"}
    small = dataclasses.replace(by_name("bpu"), shapes=fq.Shapes(size=7))
    refused = fq.forecast(Net(), small, (torch.randn(1, 3, 8, 8),)).refused
    assert refused[0].rule == "shapes" and "an axis of 8, at most 7" in refused[0].reason
    other = fq.forecast(Net(), "tensorrt", torch.randn(1, 3, 8, 8), qconfig_mapping={"": by_name("x86-vnni").qconfig})
    assert other.rows[0].rule == "activations" and "refused" in str(other)


def test_inputs_by_name_will_do_and_none_are_asked_for() -> None:
    model = nn.Linear(4, 4).eval()
    assert [row.on_device for row in fq.forecast(model, "tflite", example_kwargs={"input": torch.zeros(1, 4)})] == [
        True
    ]
    with pytest.raises(fq.ConfigError, match=r"fq.forecast\(model, target, \(x,\)\)"):
        fq.forecast(model, "tflite")


def test_the_command_prints_a_table_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forecast_net.py").write_text("from torch import nn\ndef make():\n    return nn.Conv2d(3, 4, 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = ["forecast", "--model", "forecast_net:make", "--target", "xnnpack", "--shape", "1,3,8,8"]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0 and "1 of 1 ops on the device" in shown.output
    found = json.loads(CliRunner().invoke(app, [*given, "--json"]).output)
    assert found["ops"][0]["on_device"] is True
    wrong = CliRunner().invoke(app, [*given[:-1], "1,x"])
    assert wrong.exit_code == 1 and "--shape '1,x'" in wrong.output


def test_a_narrow_table_names_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + x

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    found = fq.forecast(Sum().eval(), "tflite", (torch.randn(2, 4),))
    assert "left out to fit: node" in str(found)
    assert "(add)" in str(found)
