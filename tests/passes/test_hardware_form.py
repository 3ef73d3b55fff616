"""Passes that bring a model into the form of the hardware: each by name, with its price, only where it is asked for."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.config.target import REWRITES
from fxquant.numerics.affine import sqnr_db
from fxquant.passes.round_leaky_slopes import rounded
from fxquant.passes.scale_average_pools import pool_factor
from fxquant.passes.split_pools import first_window
from fxquant.targets import by_name


class Wide(nn.Module):
    """A bit of all that is rewritten."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(4, 8, 1)
        self.norm, self.fc, self.functional = nn.BatchNorm2d(8), nn.Linear(8, 4), functional
        self.silu, self.leaky, self.pool = nn.SiLU(), nn.LeakyReLU(0.1), nn.AvgPool2d(3, 1, 1)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.b(F.silu(x) if self.functional else self.silu(x))
        x = F.leaky_relu(x, 0.1) if self.functional else self.leaky(x)
        x = x + x.flip(3)
        first, second = self.norm(x).chunk(2, 1)
        x = self.c(first * torch.sigmoid(second))
        x = F.avg_pool2d(x, 3, 1, 1) if self.functional else self.pool(x)
        return self.fc(x.mean((2, 3)))


def inputs() -> Tensor:
    return torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def prepared(model: nn.Module, target: fq.Target) -> nn.Module:
    return fq.calibrate(fq.prepare_fx(model.eval(), {"": target.qconfig}, (inputs(),), target=target), [inputs()])


def names_in(model: nn.Module) -> set[str]:
    said = " ".join(row.reason for row in fq.explain(model))
    return {name for name in REWRITES if f"{name}: " in said}


@pytest.mark.broad
@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_each_pass_is_named_and_the_device_computes_what_calibration_saw(functional: bool, method: Any) -> None:
    torch.manual_seed(0)
    target, model = by_name("xint8-hard"), Wide(functional).eval()
    made = fq.prepare_fx(model, {"": target.qconfig}, (inputs(),), target=target, method=method)
    fq.calibrate(made, [inputs()])
    converted = fq.convert_fx(made, engine="reference")
    assert names_in(converted) == {*REWRITES}
    assert fq.check_target(converted, target) == ()
    said = [row.reason for row in fq.explain(converted)]
    assert any("hardswish for silu, -" in text and "dB of noise" in text for text in said)
    assert any("align: its inputs and output are on one scale" in text for text in said)
    assert any("3x3 times 0.984375, -36.1 dB of noise" in text for text in said)
    with torch.no_grad():
        assert sqnr_db(made(inputs()), converted(inputs())) > 20  # the float graph has the rewrites, too
        assert sqnr_db(fq.freeze(made)(inputs()), converted(inputs())) > 40


def test_only_what_the_target_asks_for_is_rewritten() -> None:
    torch.manual_seed(0)
    model = Wide(False)
    assert names_in(prepared(model, by_name("xint8"))) == {*REWRITES} - {"silu_to_hardswish", "sigmoid_to_hardsigmoid"}
    assert names_in(prepared(model, by_name("npu"))) == set()
    with pytest.warns(UserWarning, match="nothing in"):
        left = fq.prepare_fx(model, {"": None}, (inputs(),), target="xint8-hard", algorithms=())
    assert names_in(left) == set() and torch.equal(left(inputs()), model(inputs()))
    one = dataclasses.replace(by_name("npu"), rewrites=frozenset(("mean_to_pool",)))
    with torch.no_grad():
        assert torch.allclose(prepared(model, one)(inputs()), model(inputs()), atol=1e-5)
    assert names_in(prepared(model, one)) == {"mean_to_pool"}


EXACT = ("batch_norm_to_conv", "split_to_slice", "mean_to_pool", "split_pools")


@pytest.mark.parametrize("name", EXACT)
def test_exact_ones_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    model = Wide(True).eval()
    kernels = {"adaptive_avg_pool": fq.Kernel(window=64)}
    target = dataclasses.replace(by_name("npu"), rewrites=frozenset((name, "mean_to_pool")), kernels=kernels)
    made = prepared(model, target)
    assert name in names_in(made)
    with torch.no_grad():
        assert torch.allclose(made(inputs()), model(inputs()), atol=1e-5)
        assert torch.equal(model(inputs()), model(inputs()))


def test_training_sees_the_form_of_the_hardware() -> None:
    torch.manual_seed(0)
    target = by_name("xint8-hard")
    model = fq.prepare_qat_fx(Wide(False).train(), fq.templates.qat, (inputs(),), target=target)
    model(inputs()).square().mean().backward()
    kinds = {row.kind for row in fq.explain(model)}
    assert "hardsigmoid" in kinds and not kinds & {"silu", "sigmoid", "mean"}
    assert {row.kind for row in fq.explain(fq.convert_fx(model.eval(), engine="reference"))} >= {"hardsigmoid"}


def test_numbers_are_those_of_the_hardware() -> None:
    assert [rounded(a) for a in (0.01, 0.1, 0.25)] == [3 / 256, 26 / 256, 0.25]
    assert [pool_factor((n, n)) for n in (1, 2, 3, 4, 5, 6, 7, 14)] == [
        *(1.0, 1.0, 63 / 64, 1.0, 250 / 256, 252 / 256, 1029 / 1024, 4116 / 4096)
    ]
    assert abs(pool_factor((9, 13)) - 1) < 0.01
    assert first_window((32, 32), 512) == (4, 8) and first_window((37, 37), 512) == (1, 37)
    assert first_window((1031, 1031), 512) is None


def test_a_pool_that_cannot_be_split_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1)).eval()
    target = dataclasses.replace(by_name("xint8"), kernels={"adaptive_avg_pool": fq.Kernel(window=20)})
    rows = fq.forecast(model, target, torch.randn(1, 3, 23, 23)).refused
    assert rows[0].rule == "kernels" and "a window of 529 values, at most 20" in rows[0].reason


def test_an_unknown_rewrite_names_the_closest() -> None:
    with pytest.raises(fq.ConfigError, match="Closest: 'mean_to_pool'"):
        dataclasses.replace(by_name("npu"), rewrites=frozenset(("mean_to_pol",)))


def test_a_pool_and_its_factor_are_one_kernel_on_one_scale() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(3), nn.Conv2d(4, 4, 1)).eval()
    made = fq.convert_fx(prepared(model, by_name("xint8")), engine="reference")
    (factor,) = (node for node in made.graph.nodes if node.target is operator.mul)
    rows = {row.node: row for row in fq.explain(made)}
    pool = rows[str(factor.args[0])]
    assert rows[factor.name].group == pool.group == pool.node
    assert rows[factor.name].output == pool.inputs[0]
