"""Recurrent layers in one native call: equal to their steps run one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.lowering import filled_graph
from fxquant.graph.region import lowering_of
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")
from fxquant.engines.native.machine import AVX2, AVX512, AVX512_256, Machine, runs_here
from fxquant.engines.native.scan import CellScan, read_step

MACHINES = [machine for machine in (AVX512, AVX512_256, AVX2) if runs_here(machine)]
CELLS = [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"})]


def quantized(cls: type[nn.RNNBase], mode: Any, engine: Any, hidden: int = 37, **options: Any) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(7, 15, 12)
    data = [(x,)] if mode == "static" else None
    return fq.quantize(cls(12, hidden, **options).eval(), data, mode=mode, example_inputs=(x,), engine=engine), x


@pytest.mark.broad
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
@pytest.mark.parametrize(("cls", "options"), CELLS, ids=["lstm", "gru", "tanh", "relu"])
@torch.no_grad()
def test_a_kernel_does_what_the_steps_do(
    cls: type[nn.RNNBase], options: dict[str, Any], mode: str, machine: Machine
) -> None:
    model, x = quantized(cls, mode, "reference", **options)
    direction = model.layers[0][0]
    projected = direction.ih(x)
    start = tuple(0.3 * torch.randn(15, 37) for _ in range(2 if cls is nn.LSTM else 1))
    scan = CellScan(read_step(direction.step, filled_graph(direction.step), machine), machine)
    for backwards in (False, True):
        state, outputs = start, []
        for step in reversed(projected.unbind(0)) if backwards else projected.unbind(0):
            state = direction.step(step, *state)
            outputs.append(state[0])
        found, final = scan(projected, start, backwards)
        expected = torch.stack(outputs[::-1] if backwards else outputs)
        for left, right in zip((expected, *state), (found, *final), strict=True):
            assert sqnr_db(left, right) > 40


@torch.no_grad()
def test_the_engine_takes_layers_at_once_and_follows_the_model() -> None:
    model, x = quantized(nn.LSTM, "static", "native", num_layers=2, bidirectional=True)
    reference, _ = quantized(nn.LSTM, "static", "reference", num_layers=2, bidirectional=True)
    other, _ = quantized(nn.LSTM, "static", "reference", num_layers=2, bidirectional=True)
    for tensor in other.buffers():
        if tensor.dtype == torch.int8:
            tensor.copy_(-tensor)

    def agree(inputs: Tensor, *state: Any) -> None:
        for left, right in zip(_flat(reference(inputs, *state)), _flat(model(inputs, *state)), strict=True):
            assert sqnr_db(left, right) > 35

    agree(x)
    agree(x[:3, :1])
    step = model.layers[0][0].step
    assert lowering_of(step).runner.scan.scan is not None
    seen: list[int] = []
    handle = step.register_forward_hook(lambda *_: seen.append(1))
    agree(x)
    assert len(seen) == 7
    handle.remove()
    model.load_state_dict(other.state_dict())
    reference.load_state_dict(other.state_dict())
    agree(x)
    assert len(seen) == 7


def _flat(result: Any) -> list[Tensor]:
    output, state = result
    return [output, *(state if isinstance(state, tuple) else (state,))]


@torch.no_grad()
def test_packed_sequences_and_samples_run_step_by_step() -> None:
    model, x = quantized(nn.GRU, "dynamic", "native")
    reference, _ = quantized(nn.GRU, "dynamic", "reference")
    packed = nn.utils.rnn.pack_padded_sequence(x[:, :9], torch.tensor([7, 6, 6, 5, 4, 3, 2, 1, 1]))
    assert sqnr_db(reference(packed)[0].data, model(packed)[0].data) > 35
    assert sqnr_db(reference(x[:, 0])[0], model(x[:, 0])[0]) > 35
