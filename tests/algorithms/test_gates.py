"""Gates around depthwise convolutions let factors of channels pass, exactly, and only where a target splits them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import BALANCED, BiasCorrection, CrossLayerEqualization
from fxquant.algorithms.gates import whole_factors
from fxquant.flows.decide import decide
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant

DATA = [torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
TEST = torch.randn(16, 3, 10, 10, generator=torch.Generator().manual_seed(9))


def separable(act: type[nn.Module], groups: int = 12) -> nn.Module:
    """Channels that are 1000x apart in front of a depthwise convolution, whose weights make up for it."""
    torch.manual_seed(0)
    made, depth = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1, groups=groups)
    with torch.no_grad():
        factors = torch.logspace(-2, 1, 12)
        made.weight *= factors.view(-1, 1, 1, 1)
        made.bias *= factors
        depth.weight /= factors.view(-1, 1, 1, 1) if groups > 1 else factors.view(1, -1, 1, 1)
    return nn.Sequential(made, act(), depth, act(), nn.Conv2d(12, 4, 1)).eval()


def quantized(model: nn.Module, target: str, *algorithms: fq.algorithms.Algorithm) -> nn.Module:
    return fq.quantize(model, DATA, target=target, algorithms=algorithms, engine="reference", precision="int8")


def gates(model: nn.Module) -> int:
    return sum("open_gates" in row.reason for row in fq.explain(model))


@pytest.mark.parametrize("act", [nn.SiLU, nn.Hardswish])
def test_channels_before_a_depthwise_convolution_come_together(act: type[nn.Module]) -> None:
    model = separable(act)
    without = quantized(model, "xint8", BiasCorrection())
    found = quantized(model, "xint8", CrossLayerEqualization(), BiasCorrection())
    assert gates(found) == 2
    assert not fq.check_target(found, "xint8")
    assert sqnr_db(model(TEST), found(TEST)) > sqnr_db(model(TEST), without(TEST)) + 8.0


def test_the_float_function_stays() -> None:
    model = separable(nn.SiLU)
    rules = {"": fq.get_default_qconfig("xint8")}
    prepared = fq.prepare_fx(model, rules, (TEST,), target="xint8", algorithms=(CrossLayerEqualization(),))
    decided = decide(fq.calibrate(prepared, DATA))
    for module in decided.modules():
        if isinstance(module, FakeQuant):
            module.forward = lambda x, **_: x  # type: ignore[method-assign]
    named = [module for name, module in decided.named_modules() if name.endswith("_gate")]
    weights = [module.weight for module in named if isinstance(module, nn.Conv2d)]
    assert len(weights) == 2
    for weight in weights:  # 8 bits hold it
        steps = weight * 2.0 ** math.floor(math.log2(127 / float(weight.max())))
        torch.testing.assert_close(steps, steps.round())
    assert max(float(weight.max() / weight.min()) for weight in weights) > 16
    torch.testing.assert_close(decided(TEST), model(TEST))


@pytest.mark.parametrize(("groups", "target"), [(1, "xint8"), (12, "npu"), (12, "generic")])
def test_no_gate_is_opened_without_use(groups: int, target: str) -> None:
    """Where channels mix, and where silu is one kernel."""
    assert gates(quantized(separable(nn.SiLU, groups), target, *BALANCED)) == 0


def test_names_do_not_depend_on_the_data() -> None:
    model, same = separable(nn.SiLU), [torch.zeros(1, 3, 10, 10)]
    options = {"target": "xint8", "engine": "reference", "precision": "int8"}
    one, other = (fq.quantize(model, data, **options) for data in (DATA, same))  # type: ignore[arg-type]
    assert one.state_dict().keys() == other.state_dict().keys()


def test_factors_are_powers_of_two_and_not_too_far_apart() -> None:
    found: Tensor = whole_factors(torch.tensor([0.001, 0.9, 3.1, 100.0]))
    assert found.tolist() == [2.0, 2.0, 4.0, 128.0]
