"""Vectors of half the width or shared by two outputs, and runs that share quads, give the bits of whole ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region

pytest.importorskip("llvmlite")

from fxquant.engines.native import emit_weighted
from fxquant.engines.native.gemm_shape import Gemm
from fxquant.engines.native.gemm_tiles import choose_tile, takes_narrow, takes_shared
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, AVX512, NEON, ZEN4, ZEN5, Machine, runs_here
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read


class Wide(nn.Module):
    """Products with one to three vectors of outputs, all but half of the last one full; one adds its input."""

    def __init__(self, channels: int, act: nn.Module, kernel: int, stride: int, inputs: int = 5) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, channels, kernel, stride, kernel // 2)
        self.act = act
        self.again = nn.Conv2d(channels, channels, 1)
        self.last = nn.Linear(channels, channels)
        self.end = nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.first(x))
        y = y + self.again(y)
        end: Tensor = self.end(self.last(y.flatten(2).transpose(1, 2)))
        return end


@pytest.mark.broad
@pytest.mark.parametrize("size", [(7, 9), (16, 16), (1, 40)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("act", [nn.ReLU6(), nn.SiLU()], ids=lambda act: type(act).__name__)
@pytest.mark.parametrize(("channels", "kernel"), [(24, 1), (24, 3), (18, 1), (40, 3), (33, 1)])
@pytest.mark.skipif(not runs_here(AVX512), reason="the CPU has no AVX512")
def test_same_bits(
    channels: int, kernel: int, act: nn.Module, stride: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, *size)
    prepared = fq.prepare_fx(Wide(channels, act, kernel, stride).eval(), fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    converted = fq.convert_fx(prepared, engine="reference")
    assert isinstance(converted, Region)
    halved = AVX512 if not runs_here(ZEN4) else ZEN4
    chosen: list[set[bool]] = []

    def run() -> Tensor:
        found = Program(read(converted, plain_graph(converted), (x,), halved), Libraries())
        products = (
            op for op in found.placement.ops if op.macs and op.label.rpartition("-> ")[2].startswith(str(channels))
        )
        chosen.append({op.spec.narrow for op in products})
        result = found.run([x], 2)
        assert isinstance(result, Tensor)
        return result

    with torch.no_grad():
        monkeypatch.setattr(emit_weighted, "takes_narrow", lambda outputs, _: 16 < outputs < 48)
        narrow = run()
        monkeypatch.setattr(emit_weighted, "takes_narrow", lambda *_: False)
        assert torch.equal(narrow, run())
    assert chosen[0] == {True} and chosen[1] == {False}


@pytest.mark.broad
@pytest.mark.parametrize("size", [(7, 9), (16, 16), (1, 40)], ids=str)
@pytest.mark.parametrize("act", [nn.ReLU6(), nn.SiLU()], ids=lambda act: type(act).__name__)
@pytest.mark.parametrize(
    ("inputs", "channels", "kernel", "stride"),
    [(3, 24, 3, 2), (3, 32, 7, 2), (5, 40, 1, 1), (5, 18, 5, 1), (3, 33, 3, 1)],
)
@pytest.mark.skipif(not runs_here(AVX512), reason="the CPU has no AVX512")
def test_same_bits_when_shared(
    inputs: int, channels: int, kernel: int, stride: int, act: nn.Module, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, inputs, *size)
    model = Wide(channels, act, kernel, stride, inputs).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    converted = fq.convert_fx(prepared, engine="reference")
    assert isinstance(converted, Region)
    found: list[Tensor] = []
    products: list[list[Gemm]] = []
    for blends in (True, False):
        machine = replace(ZEN5 if runs_here(ZEN5) else AVX512, blends=blends)
        program = Program(read(converted, plain_graph(converted), (x,), machine), Libraries())
        products.append([op.spec for op in program.placement.ops if isinstance(op.spec, Gemm)])
        with torch.no_grad():
            result = program.run([x], 2)
        assert isinstance(result, Tensor)
        found.append(result)
    assert torch.equal(*found)
    assert any(spec.shared for spec in products[0]) == takes_shared(channels, replace(AVX512, blends=True))
    assert products[0][0].taps.rests == (kernel > 1 and inputs * kernel % 4 == 1)
    assert not any(spec.shared or spec.taps.rests for spec in products[1])


@pytest.mark.parametrize("machine", [AVX512, AVX2, NEON], ids=lambda machine: machine.name)
def test_only_where_half_a_vector_takes_half_the_time(machine: Machine) -> None:
    assert not takes_narrow(24, machine)
    assert not takes_shared(24, machine)


def test_outputs_with_half_a_vector_left() -> None:
    found = [outputs for outputs in range(1, 100) if takes_narrow(outputs, ZEN4)]
    assert found == [*range(17, 25), *range(33, 41)]


def test_the_last_block_is_the_narrow_one() -> None:
    assert [choose_tile(outputs, 56, 56, 24, 0.0, ZEN4, narrow=True)[0] for outputs in (32, 48)] == [(1, 1), (2, 1)]
