"""`.half()`, `.double()`, `.to(...)` on a converted model: other dtypes outside, the same numbers inside."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq

ENGINES = ["reference", "onednn", "onnxruntime", "openvino"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).relu()))


class Branching(Net):
    """Code that does not trace, with a float parameter of its own between regions."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum() > 1e9:
            return x
        return self.last(self.norm(x) * self.gain)


@pytest.mark.broad
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("build", [Net, Branching])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_moves_to_other_dtypes(dtype: torch.dtype, build: Any, engine: Any) -> None:
    pytest.importorskip(engine if engine in ENGINES[2:] else "torch")
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    model = fq.quantize(build().eval(), [x], engine=engine)
    with torch.no_grad():
        before = model(x)
        assert model.to(dtype) is model
        for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            for _ in range(3):
                made = each(x.to(dtype))
                assert made.dtype == dtype
                assert torch.allclose(made.float(), before, atol=0.05)
        model.to("cpu")
        assert model(x.to(dtype)).dtype == dtype
        model.float()
        assert torch.allclose(model(x), before, atol=1e-2 if build is Branching else 0)


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_type_leaves_integers_as_they_are(dtype: torch.dtype, engine: Any) -> None:
    """`Module.type` casts all tensors, where `Module.to` casts floats."""
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    model = fq.quantize(Net().eval(), [x], engine=engine)
    with torch.no_grad():
        before = model(x)
        state = copy.deepcopy(model.state_dict())
        model.type(dtype)
        for _ in range(3):
            made = model(x.to(dtype))
            assert made.dtype == dtype
            assert torch.allclose(made.float(), before, atol=0.05)
    found = model.state_dict()
    assert all(value.dtype == found[key].dtype for key, value in state.items() if torch.is_tensor(value))


def test_what_is_inside_is_not_rounded() -> None:
    x = torch.randn(4, 16)
    model = fq.quantize(Net().eval(), [x])
    state = copy.deepcopy(model.state_dict())
    model.half()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items() if torch.is_tensor(value))


def test_a_dtype_without_meaning_is_refused_and_nothing_changes() -> None:
    x = torch.randn(4, 16)
    model = fq.quantize(Net().eval(), [x])
    with torch.no_grad():
        before = model(x)
        with pytest.raises(fq.errors.StageError, match="cannot be moved to"):
            model.to(torch.complex64)
        assert torch.equal(model(x), before)


def test_meta_and_back() -> None:
    x = torch.randn(4, 16)
    model = fq.quantize(Net().eval(), [x])
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        before = model(x)
        empty = copy.deepcopy(model).to("meta")
        assert all(tensor.is_meta for tensor in empty.buffers())
        empty = empty.to_empty(device="cpu")
        empty.load_state_dict(state)
        assert torch.equal(empty(x), before)


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_part_that_is_moved_by_itself(dtype: torch.dtype, engine: Any) -> None:
    pytest.importorskip("llvmlite" if engine == "native" else "torch")
    x = torch.randn(4, 16)
    model = fq.quantize(Net().eval(), [x], engine=engine)
    with torch.no_grad():
        before = model(x)
        model.first.to(dtype)  # integers and their scales have no other form
        assert torch.equal(model(x), before) and model.first.weight_scale.dtype == torch.float32
        model.norm.to(dtype)
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(fq.errors.StageError, match=f"'norm' is {name}.*move the whole model"):
            model(x)
        model.norm.float()
        assert torch.allclose(model(x), before, atol=1e-2)
