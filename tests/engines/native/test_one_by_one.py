"""Each kernel, fed with the reference's integers, is at most one step off; on every machine that this CPU can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import fxquant as fq
from fxquant.graph.region import Region
from zoo import ZOO

pytest.importorskip("llvmlite")

from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import AVX2, AVX512, AVX512_256, ZEN4, ZEN5, Machine, runs_here
from fxquant.engines.native.one_by_one import OneByOne
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.program import Program
from fxquant.engines.native.read import read
from fxquant.engines.native.values import View

MACHINES = [machine for machine in (ZEN5, ZEN4, AVX512, AVX512_256, AVX2) if runs_here(machine)]
NAMES = ("plain", "resnet", "mobilenet", "squeeze_excite")


class Recorder(fx.Interpreter):
    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


def check_steps(model: nn.Module, x: Tensor, machine: Machine) -> int:
    """Compare every quantized tensor; how many were."""
    assert isinstance(model, Region)
    graph = plain_graph(model)
    reader = read(model, graph, (x,), machine)
    program = Program(reader, Libraries())
    recorder = Recorder(model, graph=graph)
    with torch.no_grad():
        recorder.run(x)
    made: dict[int, tuple[View, Tensor]] = {}
    for node, value in reader.values.items():
        seen = recorder.seen.get(node)
        if isinstance(value, View) and isinstance(seen, Tensor) and seen.dtype == torch.uint8:
            made.setdefault(id(value.buffer), (value, seen[0]))
    steps = OneByOne(program, (x,))
    assert len(program.levels) == 1
    last = {id(op.writes): index for index, op in enumerate(steps.ops) if not op.label.startswith("border")}
    count = 0
    for index, op in enumerate(steps.ops):
        steps.run(index)
        if id(op.writes) in made and last[id(op.writes)] == index:
            view, expected = made[id(op.writes)]
            actual = steps.tensor(view)
            off = (actual.int() - expected.int()).abs()
            assert off.max() <= 1 and (off > 0).sum() <= max(1, 0.1 * off.numel()), op.label  # few have four values
            actual.copy_(expected)
            count += 1
    return count


@pytest.mark.broad
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("name", NAMES)
def test_one_step(name: str, machine: Machine) -> None:
    entry = ZOO[name]
    (x,) = entry.inputs()
    model = fq.quantize(entry.build(), [(x,)], example_inputs=(x,), engine="onednn")
    assert check_steps(model, x[:1], machine) > 1
