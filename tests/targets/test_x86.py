"""Why weights for torch's kernels keep to 64 on CPUs without VNNI: pairs of u8 x s8 products are summed in saturating
int16 there.

`saturating_product` does what the instruction vpmaddubsw does before the sums go to int32.
"""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.affine import dequantize, quantize, sqnr_db
from fxquant.numerics.weights.weight_range import quantize_weight
from fxquant.targets.cpu import cpu
from fxquant.targets.x86 import x86


def saturating_product(x: Tensor, weight: Tensor) -> Tensor:
    """x (rows, k) in u8 times weight (outputs, k) in s8, with int16 saturation of each pair along k."""
    products = x.to(torch.int32).unsqueeze(1) * weight.to(torch.int32).unsqueeze(0)
    pairs = products.unflatten(-1, (-1, 2)).sum(-1)
    return pairs.clamp(-(2**15), 2**15 - 1).sum(-1)


def layer(vnni: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(float, exact int8, saturating int8) outputs of a linear layer on a target with or without VNNI."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(32, 256, generator=generator) * 4  # after a relu, many values are large
    weight = torch.rand(16, 256, generator=generator) * 2 - 1
    target = x86(vnni=vnni)
    spec = target.activation
    assert (spec.quant_min, spec.quant_max) == (0, 255)
    scale = torch.tensor(4.0 / (spec.quant_max - spec.quant_min))
    zero = torch.tensor(spec.quant_min, dtype=torch.int32)
    xq = quantize(x, scale, zero, spec)
    wq, w_scale, _ = quantize_weight(weight, target.weight, "weight")
    exact = xq.to(torch.int32) @ wq.to(torch.int32).t()
    factor = scale * w_scale
    torch.testing.assert_close(dequantize(xq, scale, zero, spec), x, atol=float(scale), rtol=0)
    return x @ weight.t(), exact * factor, saturating_product(xq, wq) * factor


def test_eight_bits_of_both_overflow_without_vnni() -> None:
    expected, exact, saturated = layer(True)
    assert sqnr_db(expected, exact) > 35
    assert sqnr_db(expected, saturated) < 25
    assert not torch.equal(exact, saturated)


def test_weights_without_vnni_do_not() -> None:
    expected, exact, saturated = layer(False)
    assert torch.equal(exact, saturated)
    assert sqnr_db(expected, saturated) > 35


def test_the_extremes_of_its_grids_fit() -> None:
    """2 * 255 * 64 is inside int16; one step more is not."""
    low, high = x86(vnni=False).weight.quant_min, x86(vnni=False).weight.quant_max
    x, weight = torch.full((1, 2), 255, dtype=torch.uint8), torch.tensor([[high, high], [low, low]], dtype=torch.int8)
    assert torch.equal(saturating_product(x, weight), x.int() @ weight.int().t())
    assert not torch.equal(saturating_product(x, weight + 1), x.int() @ (weight + 1).int().t())


@pytest.mark.parametrize("vnni", [False, True])
def test_a_model_for_either_runs_here(vnni: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = torch.randn(16, 8)
    target = x86(vnni=vnni)
    prepared = fq.prepare_fx(model, {"": target.qconfig}, (x,), target=target)
    fq.calibrate(prepared, [x])
    for engine in ("reference", "onednn"):
        assert sqnr_db(model(x), fq.convert_fx(prepared, engine=engine)(x)) > 25


def test_the_facts_of_this_cpu_agree_with_each_other() -> None:
    found = cpu()
    assert found.avx2 or not found.avx512
    assert str(found)


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_quantize_takes_a_target_itself(engine: str) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    assert sqnr_db(model(x).detach(), fq.quantize(model, [x], target=x86(vnni=False), engine=engine)(x)) > 25


def test_an_engine_without_exact_sums_keeps_weights_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one calibration, whose rules leave the limits of weights open."""
    module = sys.modules["fxquant.targets.x86"]
    monkeypatch.setattr(module, "cpu", lambda: dataclasses.replace(cpu(), vnni=False))
    monkeypatch.setattr(module, "makes_code", lambda: True)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    fq.calibrate(prepared, [x])
    largest = {
        engine: int(fq.convert_fx(prepared, engine=engine).get_submodule("0").integers.abs().max())
        for engine in ("reference", "onednn")
    }
    assert largest == {"reference": 127, "onednn": 64}


def test_limits_of_a_rule_hold_on_every_engine() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    target = x86(vnni=False)
    qconfig = dataclasses.replace(target.qconfig, weight=target.weight.with_(limits=(-127, 127)))
    prepared = fq.prepare_fx(model, {"": qconfig}, (x,), target=target)
    fq.calibrate(prepared, [x])
    assert int(fq.convert_fx(prepared, engine="reference").get_submodule("0").integers.abs().max()) == 127
