"""What all learned ranges have: parameters by known names, which start once and stay in bounds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fxquant.config.spec import Spec
from fxquant.numerics.fake_quant import FakeQuant
from numerics.learned_specs import SPECS, X, trained

LEARNED = {name: spec for name, spec in SPECS.items() if name != "ste"}


learned = pytest.mark.parametrize("spec", LEARNED.values(), ids=LEARNED)


@learned
def test_learned_ranges_are_parameters_by_a_known_name(spec: Spec) -> None:
    names = [name for name, _ in FakeQuant(spec, "t").named_parameters()]
    assert names[0] == ("log2_threshold" if spec.learn == "tqt" else "log_scale")


@learned
def test_a_learned_range_ignores_later_batches(spec: Spec) -> None:
    quantizer = trained(spec)
    before = quantizer.compute_qparams()
    quantizer(X * 100)
    assert all(map(torch.equal, before, quantizer.compute_qparams()))


@learned
def test_a_cast_of_the_model_leaves_the_scale_alone(spec: Spec) -> None:
    quantizer = trained(spec)
    model = nn.Sequential(quantizer).half()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model(X.half()).dtype == torch.float16


@learned
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_a_scale_that_runs_away_stays_a_scale(spec: Spec, value: float) -> None:
    if spec.learn == "tqt":
        return
    quantizer = trained(spec)
    with torch.no_grad():
        quantizer.log_scale.fill_(value)
    assert 0 < float(quantizer.compute_qparams()[0]) < math.inf and torch.isfinite(quantizer(X)).all()


@learned
def test_adam_moves_a_range_by_a_share_of_its_size(spec: Spec) -> None:
    if spec.learn == "tqt":
        return  # its steps are powers of two
    shares = []
    for size in (1e-3, 1.0, 100.0):
        quantizer = FakeQuant(spec, "t").train()
        quantizer(X * size / 2)
        before = float(quantizer.compute_qparams()[0])
        optimizer = torch.optim.Adam(quantizer.parameters(), 1e-3)
        for _ in range(100):
            optimizer.zero_grad()
            (quantizer(X * size) / size - X).square().sum().backward()
            optimizer.step()
        shares.append(float(quantizer.compute_qparams()[0]) / before)
    assert 1.3 < shares[0] < 1.8 and shares == pytest.approx([shares[0]] * 3, rel=1e-2)
