"""Activations with a scale for each channel, between a convolution and a depthwise one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region

pytest.importorskip("llvmlite")

from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import MACHINES, Machine, runs_here
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read

_HERE = [machine for machine in MACHINES if runs_here(machine)]
_SPEC = fq.Spec(bits=8, signed=False, symmetric=False, granularity="per_channel", axis=1)


def prepare(multiplier: int, x: Tensor) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24 * multiplier, 3, padding=1, groups=24),
        nn.Conv2d(24 * multiplier, 5, 1),
    ).eval()
    with torch.no_grad():
        model[0].weight.mul_(torch.linspace(0.2, 2, 24).view(-1, 1, 1, 1))
    rules = fq.get_default_qconfig_mapping("x86")
    rules = rules.set_module_name("1", fq.QConfig(activation=_SPEC, weight=fq.default_qconfig.weight))
    prepared = fq.prepare_fx(model, rules, (x,))
    prepared(x)
    return prepared


@pytest.mark.parametrize("machine", _HERE, ids=lambda machine: machine.name)
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_reads_what_a_convolution_writes(machine: Machine, multiplier: int) -> None:
    x = torch.randn(2, 3, 9, 9)
    made = fq.convert_fx(prepare(multiplier, x), engine="reference")
    assert isinstance(made, Region)
    program = Program(read(made, plain_graph(made), (x,), machine), Libraries())
    assert program.levels == [0] and not any(program.outside.values())
    with torch.no_grad():
        expected, found = made(x), program.run([x], 2)
    assert (found - expected).abs().max() < (expected.max() - expected.min()) / 100


class Shared(nn.Module):
    """What a depthwise convolution reads is read by Python, too, and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act = nn.Conv2d(3, 24, 3, padding=1), nn.ReLU()
        self.b, self.last = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.act(self.a(x))
        return self.last(self.b(y)), y.permute(0, 2, 3, 1).cumsum(1), y


def test_python_reads_them_too() -> None:
    torch.manual_seed(0)
    x, model = torch.randn(2, 3, 9, 9), Shared().eval()
    with torch.no_grad():
        model.a.weight.mul_(torch.linspace(0.2, 2, 24).view(-1, 1, 1, 1))
    rules = fq.get_default_qconfig_mapping("x86")
    rules = rules.set_module_name("act", fq.QConfig(activation=_SPEC, weight=fq.default_qconfig.weight))
    prepared = fq.prepare_fx(model, rules, (x,))
    prepared(x)
    reference, native = (fq.convert_fx(prepared, engine=engine) for engine in ("reference", fq.Native(cache=None)))
    assert isinstance(native, Region) and "native" in repr(native)
    with torch.no_grad():
        for expected, found in zip(reference(x), native(x), strict=True):
            assert (found - expected).abs().max() < (expected.max() - expected.min()) / 50


def test_scales_that_change_are_seen() -> None:
    x = torch.randn(2, 3, 9, 9)
    prepared = prepare(1, x)
    reference, native = (fq.convert_fx(prepared, engine=engine) for engine in ("reference", fq.Native(cache=None)))
    with torch.no_grad():
        for factor in (1.0, 8.0):
            for model in (reference, native):
                model.get_submodule("quantizers._1").scale.mul_(factor)
            expected = reference(x)
            assert (native(x) - expected).abs().max() < (expected.max() - expected.min()) / 50
