"""A factor for all channels of a tensor fills grids whose scales are powers of two."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import BiasCorrection, CrossLayerEqualization
from fxquant.flows.decide import decide
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant

DATA = [torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
TEST = torch.randn(16, 3, 10, 10, generator=torch.Generator().manual_seed(9))
FILL = "fxquant.algorithms.cross_layer_equalization.fit_powers"


def network(seed: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(seed)
    depth = (nn.Conv2d(16, 16, 3, padding=1, groups=16) for _ in range(2))
    layers = (nn.Conv2d(3, 16, 3, padding=1), act(), next(depth), act(), nn.Conv2d(16, 16, 1), act(), next(depth))
    return nn.Sequential(*layers, act(), nn.Conv2d(16, 4, 1)).eval()


def error(model: nn.Module) -> float:
    algorithms = (CrossLayerEqualization(), BiasCorrection())
    made = fq.quantize(model, DATA, target="xint8", algorithms=algorithms, engine="reference", precision="int8")
    return sqnr_db(model(TEST), made(TEST))


def test_filled_grids_lose_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a decibel or so: a power of two is half a place off where one is taken without looking."""
    models = [network(seed) for seed in (3, 4, 5)]
    filled = sum(map(error, models))
    monkeypatch.setattr(FILL, lambda *_: None)
    assert filled > sum(map(error, models)) + 1.5


@pytest.mark.parametrize("act", [nn.ReLU6, nn.SiLU])
def test_the_float_function_stays(act: type[nn.Module]) -> None:
    model, rules = network(3, act), {"": fq.get_default_qconfig("xint8")}
    algorithms = (CrossLayerEqualization(absorb_bias=False),)
    prepared = fq.prepare_fx(model, rules, (TEST,), target="xint8", algorithms=algorithms)
    decided = decide(fq.calibrate(prepared, DATA))
    for module in decided.modules():
        if isinstance(module, FakeQuant):
            module.forward = lambda x, **_: x  # type: ignore[method-assign]
    torch.testing.assert_close(decided(TEST), model(TEST))


def test_clips_go_to_the_end_of_their_grid() -> None:
    """A relu6 takes 96 of 127 steps of 1/16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 1), nn.ReLU6(), nn.Conv2d(8, 4, 1)).eval()
    with torch.no_grad():
        for conv in (model[0], model[2]):
            conv.weight.mul_(9)
    made = fq.quantize(model, DATA, target="xint8", engine="reference", precision="int8")
    moved = [row.reason for row in fq.explain(made) if "fit_powers: clip at 6 as one at" in row.reason]
    assert moved
    assert not fq.check_target(made, "xint8")
    assert sqnr_db(model(TEST), made(TEST)) > 25
