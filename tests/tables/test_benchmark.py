"""The table has every engine, the float model where it is given, and refuses what is not converted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.table import available_engines


def test_rows_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).eval(), torch.randn(1, 3, 16, 16)
    quantized = fq.quantize(model, [x])
    result = fq.benchmark(quantized, x, float_model=model, seconds=0.05)
    assert [row.name for row in result] == ["float", *(engine.name for engine in available_engines())]
    assert result["float"].speedup == 1.0
    assert result["onednn"].size < 0.4 * result["float"].size
    shown = capsys.readouterr().out
    assert shown.count("speed-up") == str(result).count("speed-up") == 1
    assert "median of one call" in shown  # what the columns mean
    assert "\n" not in repr(result)
    assert torch.equal(quantized(x), fq.quantize(model, [x])(x)), "the model itself is not changed"


def test_the_size_of_a_model_of_several_regions_is_that_of_its_file(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if x.sum() > 0 else self.b(x)

    model, x = Branch().eval(), torch.randn(2, 4)
    quantized = fq.quantize(model, [x, -x], example_inputs=(x,))
    size = fq.save(quantized, tmp_path / "m.safetensors").stat().st_size / 2**20
    assert fq.benchmark(quantized, x, seconds=0.01)["onednn"].size == pytest.approx(size)


def test_inputs_are_remembered() -> None:
    quantized = fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [torch.randn(2, 4)])
    assert len(list(fq.benchmark(quantized, seconds=0.01))) == len(available_engines())


def test_inputs_by_name_and_what_to_do_about_slow_ones() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.fc(input_ids)

    batch = {"input_ids": torch.randn(2, 4)}
    model = Named().eval()
    result = fq.benchmark(fq.quantize(model, [batch]), batch, float_model=model, seconds=0.01)
    slow = replace(result, rows=tuple(replace(row, speedup=0.5) for row in result.rows))
    assert "slower than float" in str(slow) and "fxquant.explain" in str(slow)
    fast = replace(result, rows=tuple(replace(row, speedup=2.0) for row in result.rows))
    assert "slower" not in str(fast)


def test_only_converted_models() -> None:
    with pytest.raises(fq.StageError, match="convert_fx or quantize"):
        fq.benchmark(nn.Linear(2, 2), torch.randn(1, 2))


@pytest.mark.broad
@pytest.mark.parametrize("engine", [*(engine.name for engine in available_engines()), "auto"])
def test_every_engine_and_auto_agree_with_the_reference(engine: str) -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), torch.randn(3, 16)
    expected = fq.quantize(model, [x], engine="reference")(x)
    torch.testing.assert_close(fq.quantize(model, [x], engine=engine)(x), expected, atol=0.02, rtol=0.02)


def test_engines_by_name() -> None:
    x = torch.randn(2, 4)
    quantized = fq.quantize(nn.Linear(4, 4).eval(), [x], engine="reference")
    found = fq.benchmark(quantized, x, engines=["onednn"], seconds=0.01, show=False)
    assert [row.name for row in found] == ["onednn"]
    with pytest.raises(fq.ConfigError, match="Give a list"):
        fq.benchmark(quantized, x, engines="onednn")
    with pytest.raises(fq.ConfigError, match="unknown"):
        fq.benchmark(quantized, x, engines=["onednm"])


def test_an_engine_that_did_not_take_all_regions_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    quantized = fq.quantize(model, [x], engine="onednn")
    monkeypatch.setattr("fxquant.tables.benchmark.runner_of", lambda region: SimpleNamespace(told={"of its sizes"}))
    found = fq.benchmark(quantized, x, engines=["onednn"], seconds=0.01, show=False)
    assert (found["onednn"].passed_on, found["onednn"].regions) == (1, 1)
    assert "onednn: 1 of 1 region ran on onednn" in str(found)
