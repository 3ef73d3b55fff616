"""Depthwise tiles that go down their rows give the bits of the other tiles."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq

pytest.importorskip("llvmlite")

from fxquant.engines.native import arithmetic, depthwise
from fxquant.engines.native.depthwise_down import choose_down
from fxquant.engines.native.finish import Finish
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, AVX512, AVX512_256, NEON, ZEN4, ZEN5, Machine, runs_here
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read

MACHINES = [machine for machine in (ZEN5, ZEN4, AVX512, AVX512_256) if runs_here(machine)]
CASES = {  # kernel, stride, channels, height, width
    "one quad": ((3, 3), (1, 1), 144, 9, 8),
    "quads that share pixels": ((3, 3), (2, 2), 80, 19, 15),
    "rows left over": ((3, 3), (1, 1), 32, 21, 33),
    "strips, one column": ((2, 4), (1, 2), 16, 8, 3),
    "four taps each way": ((4, 4), (2, 1), 70, 13, 12),
    "three outputs of a quad": ((2, 2), (1, 1), 64, 6, 7),
    "a column beyond": ((5, 5), (1, 1), 112, 13, 9),
}


@pytest.mark.broad
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("act", [nn.ReLU6(), nn.SiLU(), nn.Tanh()], ids=lambda act: type(act).__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_same_bits(
    case: tuple[tuple[int, int], tuple[int, int], int, int, int],
    act: nn.Module,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, stride, channels, height, width = case
    torch.manual_seed(0)
    layers = {
        "first": nn.Conv2d(3, channels, 1),
        "depthwise": nn.Conv2d(channels, channels, kernel, stride, (kernel[0] // 2, kernel[1] // 2), groups=channels),
        "act": act,
        "last": nn.Conv2d(channels, 4, 1),
    }
    x = torch.randn(2, 3, height, width)
    prepared = fq.prepare_fx(nn.Sequential(OrderedDict(layers)).eval(), fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    converted = fq.convert_fx(prepared, engine="reference")
    monkeypatch.setattr(arithmetic, "_FEW", 0)  # tables of activations for small tensors, too
    chosen = []

    def run() -> Tensor:
        found = Program(read(converted, plain_graph(converted), (x,), machine), Libraries())
        chosen.append([op.spec.down for op in found.placement.ops if op.label.startswith("depthwise")])
        result = found.run([x], 2)
        assert isinstance(result, Tensor)
        return result

    with torch.no_grad():
        down = run()
        monkeypatch.setattr(depthwise, "choose_down", lambda *_: None)
        assert torch.equal(down, run())
    assert chosen == [[True], [False]]


@pytest.mark.parametrize(
    ("kernel", "stride", "rows", "finish", "machine"),
    [
        ((5, 5), (2, 2), 14, Finish(), ZEN4),
        ((7, 7), (1, 1), 14, Finish(), ZEN4),  # more weights than registers
        ((3, 3), (1, 1), 3, Finish(), ZEN4),
        ((3, 3), (1, 1), 14, Finish(other="u8"), ZEN4),
        ((3, 3), (1, 1), 14, Finish(), AVX2),
        ((3, 3), (1, 1), 14, Finish(), NEON),
        ((2, 2), (2, 2), 14, Finish(), ZEN4),  # no row that outputs share
    ],
)
def test_where_weights_do_not_fit_or_other_tiles_are_better(
    kernel: tuple[int, int], stride: tuple[int, int], rows: int, finish: Finish, machine: Machine
) -> None:
    assert choose_down(kernel, stride, (rows, 14), finish, machine) is None


def test_tiles_divide_the_rows() -> None:
    assert [choose_down((3, 3), (1, 1), (rows, 9), Finish(), ZEN4) for rows in (56, 14, 7)] == [(8, 2), (7, 2), (7, 2)]
