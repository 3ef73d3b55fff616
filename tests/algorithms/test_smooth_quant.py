"""Outliers in the inputs of linears go into their weights, where something can take the factor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, SmoothQuant
from fxquant.numerics.affine import sqnr_db

DATA = [torch.randn(8, 6, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
TEST = torch.randn(32, 6, 32, generator=torch.Generator().manual_seed(9))


class Block(nn.Module):
    """A layer norm before two linears, a gated product before a third, a curve before the last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = nn.LayerNorm(32), nn.Linear(32, 48), nn.Linear(32, 48)
        self.down, self.last = nn.Linear(48, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.last(F.gelu(self.down(self.up(h) * torch.sigmoid(self.gate(h)))))


def model() -> nn.Module:
    torch.manual_seed(0)
    made = Block().eval()
    with torch.no_grad():
        made.norm.weight[3], made.norm.weight[7] = 60.0, 30.0
        made.up.weight[5] *= 20
    return made


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_outliers_cost_less(mode: str) -> None:
    float_model = model()
    before, after = (
        sqnr_db(
            float_model(TEST),
            fq.quantize(float_model, DATA, mode=mode, algorithms=each, engine="reference", precision="int8")(TEST),
        )
        for each in ((BiasCorrection(),), (SmoothQuant(), BiasCorrection()))
    )
    assert after > before + 3.0


def test_the_decisions_name_the_factors_and_what_could_not_be_smoothed() -> None:
    made = fq.quantize(model(), DATA, algorithms=(SmoothQuant(),), engine="reference", precision="int8")
    reasons = {row.path: row.reason for row in fq.explain(made)}
    assert "input smoothed by" in reasons["up"] and ", in norm" in reasons["gate"]
    assert ", in up" in reasons["down"]
    assert "input not smoothed: it comes from gelu" in reasons["last"]


def test_weights_alone_have_no_use_for_it() -> None:
    plain, smoothed = (
        fq.quantize(model(), DATA, mode="weight_only", algorithms=each, engine="reference", precision="int8")(TEST)
        for each in ((), (SmoothQuant(),))
    )
    assert torch.equal(plain, smoothed)


def test_what_others_take_as_well_is_left_alone() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x)
            return torch.softmax(h, -1) + self.fc(h)

    made = fq.quantize(Shared().eval(), DATA, algorithms=(SmoothQuant(),), engine="reference", precision="int8")
    assert any("input not smoothed: norm goes to softmax" in row.reason for row in fq.explain(made))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="strength=2"):
        SmoothQuant(strength=2)


class Residual(nn.Module):
    """As in BERT: the output of a layer norm goes to linears and on to a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.key = nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return h * 0.1 + torch.tanh(self.query(h) * 0.2) * torch.sigmoid(self.key(h) * 0.2)


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_without_a_strength_norms_are_smoothed_by_trying_also_before_a_residual(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    float_model = Residual().eval()
    with torch.no_grad():
        float_model.norm.weight[3], float_model.norm.weight[7] = 60.0, 30.0
        for linear in (float_model.query, float_model.key):
            linear.weight[:, [3, 7]] *= 0.02
    plain, smoothed = (
        fq.quantize(float_model, DATA, algorithms=each, engine=engine, precision="int8")
        for each in ((BiasCorrection(),), (SmoothQuant(strength=None), BiasCorrection()))
    )
    wanted = float_model(TEST[:8])
    assert sqnr_db(wanted, smoothed(TEST[:8])) > sqnr_db(wanted, plain(TEST[:8])) + 3.0
    reasons = {row.path: row.reason for row in fq.explain(smoothed)}
    assert "of the loss at its output is left" in reasons["query"]
    assert torch.equal(fq.load(fq.save(smoothed, tmp_path / "net.fq"), engine=engine)(TEST[:8]), smoothed(TEST[:8]))


def test_without_a_strength_nothing_is_done_where_it_does_not_pay() -> None:
    torch.manual_seed(0)
    float_model = Residual().eval()
    plain, tried = (
        fq.quantize(float_model, DATA, algorithms=each, engine="reference", precision="int8")(TEST)
        for each in ((BiasCorrection(),), (SmoothQuant(strength=None), BiasCorrection()))
    )
    assert torch.equal(plain, tried)


def test_a_norm_whose_output_is_changed_in_place_is_left_alone() -> None:
    class Changed(Residual):
        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x)
            h.mul_(2.0)
            return h + self.query(h)

    torch.manual_seed(0)
    float_model = Changed().eval()
    with torch.no_grad():
        float_model.norm.weight[3] = 60.0
        float_model.query.weight[:, 3] *= 0.02
    made = fq.quantize(float_model, DATA, algorithms=(SmoothQuant(strength=None),), engine="reference")
    assert sqnr_db(float_model(TEST), made(TEST)) > 20
