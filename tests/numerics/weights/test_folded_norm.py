"""The state of a float model, loaded where its batch norms are folded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq

MAPPING = fq.get_default_qconfig_mapping()
X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A norm behind each kind of op, one of them without a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.b = nn.Sequential(nn.ConvTranspose2d(8, 8, 3, groups=2), nn.BatchNorm2d(8, affine=False))
        self.fc = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(self.b(self.a(x)).mean((2, 3))))


class Branched(Net):
    """The same in code of which no graph takes all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        if x.sum() > 1e9:
            x = x * 2
        return self.norm(self.fc(self.b(x).mean((2, 3))))


def other(model: nn.Module) -> nn.Module:
    """The same model with other numbers."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in made.parameters():
            tensor.mul_(1.1).add_(0.05)
        for name, buffer in made.named_buffers():
            if "running" in name:
                buffer.mul_(2).add_(0.3)
    return made


STAGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "prepared": lambda model: fq.prepare_fx(model, MAPPING, (X,)),
    "export": lambda model: fq.prepare_fx(model, MAPPING, (X,), method="export"),
    "fused": fq.fuse_fx,
    "fused, prepared": lambda model: fq.prepare_fx(fq.fuse_fx(model), MAPPING, (X,)),
    "regions": lambda model: fq.prepare_fx(model, MAPPING, (X,)),
    "copied": lambda model: copy.deepcopy(fq.prepare_fx(model, MAPPING, (X,))),
    "waiting": lambda model: fq.prepare_fx(model, MAPPING),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_float_models_state_is_folded(stage: str) -> None:
    torch.manual_seed(0)
    model = (Branched if stage == "regions" else Net)().eval()
    given = other(model)
    state: dict[str, Any] = dict(given.state_dict())
    loaded = STAGES[stage](model)
    told = loaded.load_state_dict(state, strict=stage == "fused")
    assert not told.unexpected_keys and not any("weight" in key or "bias" in key for key in told.missing_keys)
    torch.testing.assert_close(loaded(X), given(X), rtol=1e-5, atol=1e-5)
    assert state.keys() == given.state_dict().keys()  # the caller's own is as it was


def test_part_of_it_is_refused() -> None:
    model = Net().eval()
    prepared = fq.prepare_fx(model, MAPPING, (X,))
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "a.1.running_var"}
    with pytest.raises(RuntimeError, match=r"a\.1 was folded into a\.0, and the state has no a\.1\.running_var"):
        prepared.load_state_dict(state, strict=False)


def test_a_frozen_model_refuses_it() -> None:
    model = Net().eval()
    frozen = fq.freeze(fq.calibrate(fq.prepare_fx(model, MAPPING, (X,)), [X]))
    with pytest.raises(RuntimeError, match="algorithms have changed that since"):
        frozen.load_state_dict(model.state_dict(), strict=False)
    trained = fq.prepare_qat_fx(Net().train(), fq.get_default_qat_qconfig_mapping(), (X,))
    with pytest.raises(RuntimeError, match="algorithms have changed that since"):
        frozen.load_state_dict(trained.state_dict(), strict=False)


def test_its_own_state_loads_as_it_is() -> None:
    prepared = fq.calibrate(fq.prepare_fx(Net().eval(), MAPPING, (X,)), [X])
    again = fq.prepare_fx(other(Net().eval()), MAPPING, (X,))
    again.load_state_dict(prepared.state_dict())
    assert torch.equal(again(X), prepared(X))
