"""What the calls give shows itself: in a terminal with whole paths, in a notebook as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.tuning.sensitivity import Row

PATH = "encoder_of_the_pictures.first_convolution_of_all"


def net() -> nn.Module:
    torch.manual_seed(0)
    outer, inner = nn.Sequential(), nn.Sequential()
    inner.add_module("first_convolution_of_all", nn.Linear(4, 4))
    outer.add_module("encoder_of_the_pictures", inner)
    return outer.eval()


DATA = [torch.randn(2, 4), torch.randn(2, 4)]
CALLS: dict[str, Callable[[nn.Module], object]] = {
    "benchmark": lambda q: fq.benchmark(q, DATA[0], seconds=0.001, engines=["onednn"], show=False),
    "check": lambda q: fq.check(net(), q, DATA),
    "compare": lambda q: fq.compare(net(), q, DATA),
    "explain": fq.explain,
    "forecast": lambda q: fq.forecast(net(), "tflite", DATA[0]),
    "profile": lambda q: fq.profile(q, DATA[0], rounds=1, show=False),
    "sensitivity": lambda q: fq.sensitivity(net(), DATA),
    "tune": lambda q: fq.tune(net(), DATA, lambda m: float(m(DATA[0]).mean()), timeout=0, engine="reference"),
}


@pytest.fixture(scope="module")
def quantized() -> nn.Module:
    return fq.quantize(net(), DATA)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_shown(name: str, quantized: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CALLS[name](quantized)
    page = found._repr_html_()  # type: ignore[attr-defined]
    assert "<table>" in page and page.count("<tr>") > 1
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "50")
    if name in ("compare", "explain", "forecast", "sensitivity"):
        assert PATH in page and any(PATH in line for line in str(found).splitlines())


def test_an_engine_that_was_not_timed_is_named(quantized: nn.Module) -> None:
    found = fq.benchmark(quantized, DATA[0], seconds=0.001, engines=["onednn"], show=False)
    assert str(found).startswith("1 thread\n" if found.threads == 1 else f"{found.threads} threads\n")
    with pytest.raises(fq.ConfigError, match=r"'natve' was not timed\. There is: onednn\."):
        found["natve"]


def test_a_notebook_shows_all_that_a_terminal_does() -> None:
    found = fq.explain(fq.quantize(net(), DATA, engine="reference"))
    found = dataclasses.replace(found, remarks=(("", "slower than <float>"),))
    assert "<root>: slower than <float>" in str(found)
    assert "&lt;root&gt;: slower than &lt;float&gt;" in found._repr_html_()


def test_a_sensitivity_table_gives_way_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"site": "a.path.of.a.weight", "what": "weight", "ops": (), "places": ("p" * 60,), "spec": "s" * 30}
    row = Row(**place, alone_quantized=1.0, alone_float=2.0)  # type: ignore[arg-type]
    table = fq.Sensitivity(rows=(row,), unit="dB", quantized=1.0, float_=2.0)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(table).splitlines()[1:])) <= 80
