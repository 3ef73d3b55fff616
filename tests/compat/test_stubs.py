"""Stubs leave no trace in a graph; our switches and observer states."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant import compat

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("source", ["ours", "torch.ao"])
def test_stubs_are_traced_away(source: str) -> None:
    names = compat if source == "ours" else pytest.importorskip("torch.ao.quantization")

    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.fc, self.dequant = names.QuantStub(), nn.Linear(6, 6), names.DeQuantStub()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dequant(self.fc(self.quant(x)))

    for model in (Marked().eval(), names.QuantWrapper(nn.Linear(6, 6)).eval()):
        prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (X,))
        assert [row.kind for row in fq.explain(prepared)] == ["linear"]


def test_the_state_of_observers_and_the_switches() -> None:
    def prepare() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)).eval()
        return fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (X,))

    prepared, fresh = prepare(), prepare()
    prepared(X)
    prepared.apply(compat.disable_observer)
    state = compat.get_observer_state_dict(prepared)
    prepared(X * 10)
    assert state and not any(key.endswith(("weight", "bias")) for key in state)
    compat.load_observer_state_dict(fresh, state)
    assert torch.equal(fq.convert_fx(fresh)(X), fq.convert_fx(prepared)(X))
    state.pop(next(iter(state)))
    with pytest.raises(fq.ConfigError, match="1 keys are missing"):
        compat.load_observer_state_dict(fresh, state)
    trained = fq.prepare_qat_fx(nn.Sequential(nn.Linear(6, 6)), fq.get_default_qat_qconfig_mapping("x86"), (X,))
    expected = nn.functional.linear(X, trained.get_submodule("0").weight, trained.get_submodule("0").bias)
    torch.testing.assert_close(trained.apply(compat.disable_fake_quant)(X), expected)
    assert not torch.equal(trained.apply(compat.enable_fake_quant).apply(compat.enable_observer)(X), expected)
