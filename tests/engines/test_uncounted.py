"""Writes that torch does not count, through numpy, DLPack and `tensor.data`: engines that packed a tensor see them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.numerics.sampled import read, sampled

ENGINES = ["reference", "onednn", "native", "onnxruntime", "openvino"]
NEEDED = {"native": "llvmlite", "onnxruntime": "onnxruntime", "openvino": "openvino"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).relu()))


def by_numpy(tensor: Tensor) -> None:
    array = tensor.detach().numpy()
    np.multiply(array, 0.5, out=array, casting="unsafe")


def by_dlpack(tensor: Tensor) -> None:
    other = torch.from_dlpack(tensor.detach())
    other.copy_(other * 0.5)


def by_data(tensor: Tensor) -> None:
    tensor.data.copy_(tensor.data * 0.5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_to_a_whole_tensor_is_seen(engine: Any) -> None:
    pytest.importorskip(NEEDED.get(engine, "torch"))
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    made = fq.quantize(Net().eval(), [x], engine=engine)
    with torch.no_grad():
        for write in (by_numpy, by_dlpack, by_data):
            model = copy.deepcopy(made)
            for name in ("first.weight", "last.weight_scale", "last.bias", "norm.weight"):
                before = [model(x) for _ in range(3)][-1]
                write({**dict(model.named_buffers()), **dict(model.named_parameters())}[name])
                found = model(x)
                fresh = copy.deepcopy(made)
                fresh.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
                assert not torch.allclose(found, before, atol=1e-4), (write, name)
                torch.testing.assert_close(found, fresh(x), atol=0.05, rtol=0.0)


@pytest.mark.parametrize("engine", ENGINES[:3])
def test_a_weight_that_is_read_as_an_attribute(engine: Any) -> None:
    pytest.importorskip(NEEDED.get(engine, "torch"))
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    model: Any = fq.quantize(Net().eval(), [x], engine=engine)
    with torch.no_grad():
        before = [model(x) for _ in range(3)][-1]
        model.last.weight.data[1, 3] = -50  # one element
        after = model(x)
        assert not torch.equal(before[:, 1], after[:, 1]) and torch.allclose(before[:, 2:], after[:, 2:], atol=1e-5)
        ways: list[Callable[[Tensor], Any]] = [np.asarray, lambda x: x.numpy(), lambda x: x.detach()]
        for array in map(np.asarray, (each(model.last.weight) for each in ways)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        torch.from_dlpack(model.last.weight).zero_()
        assert torch.equal(model(x), after)
        model.last.weight.data = torch.zeros_like(model.last.weight)
        assert not model.state_dict()["last.weight"].any()
        assert torch.allclose(model(x), model.last.bias.expand(4, 4), atol=1e-5)


def test_what_is_sampled_of_a_tensor() -> None:
    plain = torch.zeros(1), torch.zeros(7, dtype=torch.int8), torch.zeros(64, 64).bfloat16(), torch.zeros(9)[::2]
    for tensor in plain:
        sample = sampled(tensor)
        assert sample is not None
        before = read([sample])
        assert len(before) <= 16 and read([sample]) == before
        tensor.data.fill_(3)
        assert read([sample]) != before
    for other in (torch.zeros(0), torch.zeros(4, device="meta"), torch.eye(4).to_sparse(), torch.zeros(1).bool()):
        assert sampled(other) is None
