"""The scales of weights are parameters, so that a converted model says its device and dtype as any other does."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import fxquant as fq

ENGINES = ("reference", "onednn", "native")
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Device(nn.Module):
    """Asks for its device and dtype as models of transformers do, outside of what a graph takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8, bias=False), nn.Linear(8, 4)

    @property
    def device(self) -> torch.device:
        return next(parameter.device for parameter in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return next(parameter.dtype for parameter in self.parameters() if parameter.is_floating_point())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.to(self.device, self.dtype)).relu())


def converted(engine: Any = None, mode: str = "static") -> Any:
    torch.manual_seed(0)
    return fq.quantize(Device().eval(), [X], engine=engine, mode=mode)


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_a_converted_model_says_its_device_and_dtype(mode: str) -> None:
    model = converted(mode=mode)
    assert (model.device.type, model.dtype) == ("cpu", torch.float32)
    assert all(not parameter.requires_grad for parameter in model.parameters())
    assert {name for name, _ in model.named_parameters()} == {"first.weight_scale", "last.weight_scale"}


def test_half_precision_says_its_own() -> None:
    """There the scales, float32, would say something else than the norms."""
    model = nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 4)).eval().bfloat16()
    with pytest.warns(UserWarning, match="bfloat16"):
        made = fq.quantize(model, [torch.arange(9)], mode="weight_only")
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "float": lambda model: model.float(),
    "half and back": lambda model: model.half().float(),
    "loaded": lambda model: model.load_state_dict(model.state_dict()) and model,
    "assigned": lambda model: model.load_state_dict(model.state_dict(), assign=True) and model,
    "shared": lambda model: model.share_memory(),
    "averaged": lambda model: torch.optim.swa_utils.AveragedModel(model),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_done_to_models_leaves_them(change: str, engine: Any) -> None:
    model = converted(engine)
    expected = model(X)
    changed = CHANGES[change](model)
    assert torch.equal(changed(X), expected)
    scales = list(changed.parameters())
    assert len(scales) == 2 and all(type(p) is nn.Parameter and p.dtype == torch.float32 for p in scales)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_of_inputs_are_those_of_before(engine: Any) -> None:
    model = converted(engine)
    assert not model(X).requires_grad
    asked = copy.deepcopy(model).requires_grad_(True)  # as code does that goes on to train a part
    torch.testing.assert_close(asked(X), model(X), atol=1e-2, rtol=0)


def test_tied_weights_share_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu())

    model: Any = fq.quantize(Tied().eval(), [X])
    assert model.a.weight_scale is model.b.weight_scale
    assert len(list(model.parameters())) == 1
    again: Any = copy.deepcopy(model)
    assert again.a.weight_scale is again.b.weight_scale


def test_files_have_them_as_before(tmp_path: Path) -> None:
    """What read files of earlier versions, reads these, and the other way round."""
    model = converted()
    fq.save(model, tmp_path / "model.fq")
    with safe_open(tmp_path / "model.fq", "pt") as file:
        assert not json.loads(file.metadata()["fxquant"])["parameters"]
    loaded: Any = fq.load(tmp_path / "model.fq", Device().eval())
    assert torch.equal(loaded(X), model(X))
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_of_half_precision_is_assigned_in_the_models_own(engine: Any) -> None:
    model = converted(engine)
    halved = {name: x.half() if x.is_floating_point() else x for name, x in model.state_dict().items()}
    copied, assigned = copy.deepcopy(model), copy.deepcopy(model)
    copied.load_state_dict(halved)
    assigned.load_state_dict(halved, assign=True)
    assert torch.equal(assigned(X), copied(X))
    assert {parameter.dtype for parameter in assigned.parameters()} == {torch.float32}
