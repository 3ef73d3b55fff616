"""Weights of converted modules read as torch.ao's do, and as plain tensors."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.conv1(x).relu().mean((2, 3)))
        return out


class Pieces(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = x.relu() if float(x.sum()) < 1e9 else x
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


@pytest.mark.parametrize("engine", ["onednn", "reference"])
@pytest.mark.parametrize("cls", [Net, Pieces])
def test_weights_are_called_and_read(cls: type[nn.Module], engine: Any) -> None:
    torch.manual_seed(0)
    model, x = cls().eval(), torch.randn(2, 3, 8, 8)
    q: Any = fq.quantize(model, [x], engine=engine)
    expected = q(x)
    for float_module, module in ((model.conv1, q.conv1), (model.fc, q.fc)):
        weight = module.weight()
        real = weight.dequantize()
        assert real.dtype == torch.float32
        assert type(real) is Tensor
        assert (real - float_module.weight).abs().max() < 0.01
        assert (module.bias() - float_module.bias).abs().max() < 0.01
        assert weight.int_repr().dtype == torch.int8
        assert weight.shape == float_module.weight.shape
        scales = weight.q_per_channel_scales().view(-1, *[1] * (weight.dim() - 1))
        assert torch.allclose(weight.int_repr() * scales, real)
        assert module.weight.dtype == (torch.int8 if cls is Net else torch.float32)
        assert type(module.weight * 2) is Tensor
        for twin in (copy.deepcopy(module.weight), pickle.loads(pickle.dumps(module.weight))):
            assert type(twin) is Tensor
            assert torch.equal(twin, module.weight)
    assert all(type(tensor) is Tensor for tensor in q.state_dict().values())
    buffer = io.BytesIO()
    torch.save(q.state_dict(), buffer)
    buffer.seek(0)
    q.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(q(x), expected)


def test_in_place_changes_of_a_weight_are_those_of_the_module() -> None:
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    q: Any = fq.quantize(model, [x], engine="reference")
    q.fc.weight.zero_()
    assert not q.fc.state_dict()["weight"].any()
    assert torch.equal(q(x), q.fc.bias().expand(2, 4))
