"""Kernels that are called directly give what they give by themselves, and only while nothing has changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import fxquant as fq
from fxquant.engines.onednn.kernel_modules import Kernel


class Net(nn.Module):
    """Kernels of one tensor and of two, convolutions and linears, a sum that is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.deep, self.fc, self.last = nn.Conv2d(8, 8, 1), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.wide(x) + x).relu()
        x = self.deep(x) + x
        x = x.mean((2, 3))
        return self.last(self.fc(x).relu() + x)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def data() -> list[Tensor]:
    return [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) for _ in range(3)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that ran by themselves."""
    found: list[str] = []
    call = Kernel.__call__

    def counted(kernel: Kernel, *args: Any) -> Tensor:
        found.append(kernel.holder.kind)
        return call(kernel, *args)

    monkeypatch.setattr(Kernel, "__call__", counted)
    return found


def made(model: nn.Module, data: list[Tensor]) -> nn.Module:
    return fq.quantize(model, data, engine="onednn", precision="int8")


@torch.no_grad()
def test_calls_of_known_sizes_pass_the_kernels_by(model: nn.Module, data: list[Tensor], runs: list[str]) -> None:
    quantized = made(model, data)
    for x in (data[0], data[0][:1], torch.randn(2, 3, 12, 9)):
        expected = copy.deepcopy(quantized)(x)
        for _ in range(3):
            assert torch.equal(quantized(x), expected)
        runs.clear()
        assert torch.equal(quantized(x), expected)
        assert not runs


@torch.no_grad()
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (3, 8, 8), (2, 4, 8, 8)], ids=["no sample", "no batch", "channels"])
def test_odd_inputs_are_the_kernels(
    model: nn.Module, data: list[Tensor], shape: tuple[int, ...], runs: list[str]
) -> None:
    quantized = made(model, data)
    x = torch.randn(shape)
    answers = []
    for warm in (False, True):
        for _ in range(3 if warm else 0):
            quantized(data[0])
        runs.clear()
        try:
            answers.append(str(quantized(x)))
        except RuntimeError as error:
            answers.append(str(error))
        assert runs
    assert answers[0] == answers[1]


@torch.no_grad()
def test_hooks_and_modes_see_what_they_saw(model: nn.Module, data: list[Tensor]) -> None:
    quantized, x = made(model, data), data[0]
    for _ in range(3):
        expected = quantized(x)
    seen: list[torch.Size] = []
    handle = quantized.get_submodule("deep").register_forward_hook(
        lambda module, given, found: seen.append(found.shape)
    )
    quantized(x)
    handle.remove()
    assert seen == [torch.Size((2, 8, 8, 8))]
    assert torch.equal(quantized(x), expected)
    traced = fx.symbolic_trace(nn.Sequential(quantized))
    assert torch.allclose(traced(x), expected, atol=0.1)
    with torch.autocast("cpu"):
        assert torch.allclose(quantized(x).float(), expected, atol=0.1)
    quantized.forward = lambda x: x + 1  # type: ignore[method-assign]
    assert torch.equal(quantized(x), x + 1)


@torch.no_grad()
def test_what_is_written_counts_from_the_next_call(model: nn.Module, data: list[Tensor], runs: list[str]) -> None:
    quantized, x = made(model, data), data[0]
    for _ in range(3):
        before = quantized(x)
    state = {name: value.clone() for name, value in quantized.state_dict().items()}
    quantized.get_submodule("last").bias.add_(1.0)  # type: ignore[union-attr, operator]
    runs.clear()
    for _ in range(3):
        torch.testing.assert_close(quantized(x), before + 1.0)
    assert runs
    quantized.load_state_dict(state)
    for _ in range(3):
        assert torch.equal(quantized(x), before)


@torch.no_grad()
@pytest.mark.parametrize("engine", ["reference", "onednn"])
@pytest.mark.parametrize("calls", [0, 3])
def test_a_bias_that_the_graph_lacks_is_not_read(model: nn.Module, data: list[Tensor], engine: str, calls: int) -> None:
    quantized, x = fq.quantize(model, data, engine=engine, precision="int8"), data[0]
    expected = copy.deepcopy(quantized)(x)
    for _ in range(calls):
        quantized(x)
    quantized.get_submodule("stem").bias = nn.Parameter(torch.full((8,), 3.0))
    assert torch.equal(quantized(x), expected)
