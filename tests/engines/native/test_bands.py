"""Chains of kernels that run in bands of rows give the bits of one kernel after the other."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region

pytest.importorskip("llvmlite")

from fxquant.engines.native import bands
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, AVX512, Machine, runs_here
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read

_PROFILE = settings()
LEAN = settings(_PROFILE, max_examples=max(6, _PROFILE.max_examples // 8), suppress_health_check=list(HealthCheck))
_NEVER = 1 << 40


class Residual(nn.Module):
    """What a chain may end with: the sum of it and its input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y + x if y.shape == x.shape else y


@st.composite
def pictures(draw: Any) -> tuple[nn.Module, Tensor]:
    """Convolutions with and without groups, strides and padding, one after the other."""
    channels = draw(st.sampled_from((1, 3, 17)))
    height, width = draw(st.integers(8, 40)), draw(st.integers(8, 40))
    x = torch.randn(2, channels, height, width)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(2, 5))):
        kernel, stride = draw(st.sampled_from((1, 1, 2, 3, 5))), draw(st.sampled_from((1, 1, 2)))
        padding, depthwise = draw(st.integers(0, kernel // 2)), draw(st.booleans())
        outputs = channels if depthwise else draw(st.integers(1, 70))
        groups = channels if depthwise else 1
        layers += [nn.Conv2d(channels, outputs, kernel, stride, padding, groups=groups), nn.ReLU6()]
        channels = outputs
    model = nn.Sequential(Residual(*layers), nn.Conv2d(channels, 4, 1))
    return model.eval(), x


def program(model: nn.Module, x: Tensor, machine: Machine) -> tuple[Program, int]:
    """Return the code of a model, and how many chains it has."""
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    with torch.no_grad():
        prepared(x)
    made = fq.convert_fx(prepared, engine="reference")
    assert isinstance(made, Region)
    reader = read(made, plain_graph(made), (x,), machine)
    found = Program(reader, Libraries())
    return found, len(bands.find_chains(found.placement.ops))


def runs(model: nn.Module, x: Tensor, machine: Machine, windows: int, worth: int) -> tuple[Tensor, int]:
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(bands, "_WORTH", worth)
        patch.setattr(bands, "_WINDOWS", windows)
        made, chains = program(model, x, machine)
        result = made.run([x], len(x))
    assert isinstance(result, Tensor)
    return result, chains


@pytest.mark.parametrize("machine", [AVX512, AVX2], ids=lambda machine: machine.name)
@given(data=st.data())
@LEAN
def test_bands(machine: Machine, data: st.DataObject) -> None:
    if not runs_here(machine):
        pytest.skip(f"this CPU is no {machine.name}")
    try:
        model, x = data.draw(pictures())
        with torch.no_grad():
            model(x)
    except RuntimeError:  # a kernel that is larger than its input
        return
    windows = data.draw(st.sampled_from((4, 16, 64, 512))) << 10
    found, _ = runs(model, x, machine, windows, 0)
    expected, chains = runs(model, x, machine, windows, _NEVER)
    assert not chains
    assert torch.equal(found, expected)


def test_chains_end_where_they_hand_on_least() -> None:
    machine = AVX512 if runs_here(AVX512) else AVX2
    if not runs_here(machine):
        pytest.skip(f"this CPU is no {machine.name}")
    widen, middle, narrow = nn.Conv2d(8, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 8, 1)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), widen, middle, narrow, nn.Conv2d(8, 64, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "_WORTH", 40 << 10)
        made, _ = program(model.eval(), torch.randn(1, 3, 24, 24), machine)
        (chain,) = bands.find_chains(made.placement.ops)
    assert chain.links[-1].op.label == "conv 1x1 64x24x24 -> 8"
