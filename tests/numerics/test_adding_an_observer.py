"""docs/adding_an_observer.md works as written: the blocks of code, a row and a name, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.config import check_fields
from fxquant.numerics.learned.table import LEARNED
from fxquant.numerics.observers.table import OBSERVERS

DOC = Path(__file__).parents[2] / "docs" / "adding_an_observer.md"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL):
        exec(block, names)
    monkeypatch.setitem(OBSERVERS, "four_sigma", names["FOUR_SIGMA"])
    monkeypatch.setitem(LEARNED, "plain", names["PLAIN"])
    monkeypatch.setattr("fxquant.config.spec.ObserverKind", Literal[tuple(OBSERVERS)])
    monkeypatch.setattr("fxquant.config.spec.Learn", Literal[("ste", *LEARNED)])
    monkeypatch.setattr(check_fields, "_fields", check_fields._fields.__wrapped__)  # which remembers no names
    return names


def test_the_observer(made: dict[str, Any]) -> None:
    model, x = nn.Sequential(nn.Linear(64, 4)).eval(), torch.randn(256, 64)
    x[0, 0] = 100.0
    qconfig = fq.QConfig(fq.Spec(observer="four_sigma"), fq.Spec(observer="four_sigma"))
    quantized = fq.quantize(
        model, [x], qconfig_mapping=fq.QConfigMapping().set_global(qconfig), engine="reference", example_inputs=(x,)
    )
    (scale,) = (value for name, value in quantized.state_dict().items() if name.endswith(".scale"))
    assert 3 < float(scale) * 127 < 8, "four deviations, and not the outlier"


def test_the_learned_scale(made: dict[str, Any]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(16, 8)
    qconfig = fq.QConfig(fq.Spec(learn="plain"), fq.Spec(learn="plain"))
    prepared = fq.prepare_qat_fx(model.train(), fq.QConfigMapping().set_global(qconfig), (x,))
    prepared(x).square().sum().backward()
    learned = [p for name, p in prepared.named_parameters() if name.endswith("scale")]
    assert len(learned) == 2 and all(p.grad is not None and bool(p.grad != 0) for p in learned)
    torch.testing.assert_close(fq.convert_fx(prepared.eval(), engine="reference")(x), prepared(x))
