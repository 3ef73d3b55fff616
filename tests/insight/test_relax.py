"""Kernels in float without quantizing again, against models that were quantized with `ignore`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.insight.compare import compare_sides
from fxquant.insight.fixes import WORTH, try_fixes
from fxquant.insight.relax import Change, kernels, output_sqnr, with_followers
from fxquant.insight.sides import Sides, set_side_by_side


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.body(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    model(torch.randn(16, 3, 8, 8))
    return model.eval()


@pytest.fixture(scope="module")
def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(4, 3, 8, 8) for _ in range(3)]


def sides_of(net: nn.Module, data: list[Tensor], **options: object) -> Sides:
    return set_side_by_side(net, fq.quantize(net, data, **options), data[0], {}, "test")


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_all_kernels_in_float_are_the_float_model(mode: str, net: nn.Module, data: list[Tensor]) -> None:
    sides = sides_of(net, data, mode=mode)
    before = output_sqnr(sides, data, Change())
    assert before == pytest.approx(compare_sides(sides, data).output_sqnr)
    assert output_sqnr(sides, data, Change(floating=frozenset(kernels(sides)))) > 100
    assert output_sqnr(sides, data, Change()) == before  # nothing is left changed


@pytest.mark.parametrize("path", ["stem.0", "body.0", "head"])
def test_one_kernel_in_float_is_what_ignore_gives(path: str, net: nn.Module, data: list[Tensor]) -> None:
    sides = sides_of(net, data, algorithms=())
    kernel = next(k for k, nodes in kernels(sides).items() if nodes[0].name == path.replace(".", "_"))
    found = output_sqnr(sides, data, Change(floating=with_followers(sides, frozenset({kernel}))))
    wanted = fq.compare(net, fq.quantize(net, data, algorithms=(), ignore=[path]), data).output_sqnr
    assert found == pytest.approx(wanted, abs=0.01)


def test_the_fix_names_the_kernel_that_hurts(net: nn.Module, data: list[Tensor]) -> None:
    coarse = fq.QConfigMapping().set_global(fq.default_qconfig).set_module_name("body.0", _two_bits())
    sides = sides_of(net, data, qconfig_mapping=coarse)
    tried = try_fixes(sides, compare_sides(sides, data), data, most=8)
    assert tried.kernels[0].path == "body.0"
    assert tried.fixes[0].gain > 1 and "body.0" in tried.fixes[0].code
    assert all(fix.sqnr == pytest.approx(tried.sqnr + fix.gain) for fix in tried.fixes)


def _two_bits() -> fq.QConfig:
    weight = fq.Spec(bits=2, signed=True, symmetric=True, granularity="per_channel", axis=0)
    return fq.QConfig(activation=fq.default_qconfig.activation, weight=weight)


def test_ranges_that_are_too_narrow_are_found(net: nn.Module, data: list[Tensor]) -> None:
    sides = sides_of(net, [0.3 * x for x in data])
    tried = try_fixes(sides, compare_sides(sides, data), data, most=1)
    wider = next(fix for fix in tried.fixes if "more data" in fix.title)
    assert wider.gain > 3


def test_exact_activations_are_what_weight_only_gives(net: nn.Module, data: list[Tensor]) -> None:
    sides = sides_of(net, data, algorithms=(), engine="reference", precision="int8")
    weights = fq.QConfig(weight=fq.get_default_qconfig("x86").weight)
    alone = fq.quantize(net, data, qconfig_mapping=weights, algorithms=(), engine="reference", precision="int8")
    found = output_sqnr(sides, data, Change(exact="activations"))
    assert found == pytest.approx(fq.compare(net, alone, data).output_sqnr, abs=0.01)
    before = output_sqnr(sides, data, Change())
    assert before < output_sqnr(sides, data, Change(exact="weights")) < 60  # activations are still rounded
    tried = try_fixes(sides, compare_sides(sides, data), data, most=1)
    assert tried.exact_activations == pytest.approx(found)
    assert any("weight_only" in fix.code for fix in tried.fixes) == (found - before >= WORTH)
