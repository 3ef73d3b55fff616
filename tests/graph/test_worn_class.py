"""What torch derives from the class that a module says, and puts on it, leaves the module what it is."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import fxquant as fq
from fxquant.numerics.weights.qat_block import QatBlock

MAPPING = fq.get_default_qat_qconfig_mapping()
X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Shard:
    """What fully_shard derives from."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu() + x


class Net(nn.Module):
    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.stem, self.block, self.rnn = nn.Conv2d(3, 8, 1), Block(), nn.LSTM(8, 8, batch_first=True)
        self.head, self.branches = nn.Linear(8, 4), branches

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.stem(x))
        if self.branches and x.sum() > 1e9:
            x = x * 2
        return self.head(self.rnn(x.flatten(2).transpose(1, 2))[0].mean(1))


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def trained(branches: bool) -> Any:
    torch.manual_seed(0)
    prepared = fq.prepare_qat_fx(Net(branches).train(), MAPPING, (X,))
    prepared(X).sum().backward()
    prepared.zero_grad()
    return prepared


@pytest.mark.parametrize("part", ["block.conv", "head", "block", "rnn"])
@pytest.mark.parametrize("branches", [False, True], ids=["one region", "regions"])
def test_a_class_that_is_derived_from_what_a_module_says(branches: bool, part: str) -> None:
    """As fully_shard does; on real shards: tests/flows/ranks.py."""
    model = trained(branches).eval()
    expected, module = model(X), model.get_submodule(part)
    said, is_a = module.__class__, type(module)
    module.__class__ = derived = type(f"Sharded{said.__name__}", (Shard, said), {})
    assert isinstance(module, Shard) and isinstance(module, said) and isinstance(module, is_a)
    assert module.__class__ is derived
    assert torch.equal(model(X), expected)
    module.__class__ = said
    assert type(module) is is_a and torch.equal(model(X), expected)


@pytest.mark.parametrize("how", ["own", "weight_norm", "spectral_norm"])
def test_a_parametrized_block_trains_and_converts(how: str) -> None:
    model = trained(branches=False)
    conv = model.block.conv
    if how == "own":
        parametrize.register_parametrization(conv, "weight", Halved())
    else:
        getattr(parametrizations, how)(conv)
    assert isinstance(conv, nn.Conv2d) and isinstance(conv, QatBlock)
    model(X).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    expected = model.eval()(X)
    assert torch.equal(copy.deepcopy(model)(X), expected)
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(model)
    assert torch.equal(fq.freeze(model)(X), expected)
    converted = fq.convert_fx(model, engine="reference")
    torch.testing.assert_close(converted(X), expected, rtol=1e-3, atol=1e-3)
    assert "block.conv.weight" in converted.state_dict()


def test_a_block_is_what_it_was_when_its_parametrization_is_removed() -> None:
    model = trained(branches=False).eval()
    expected, keys = model(X), model.state_dict().keys()
    parametrize.register_parametrization(model.head, "weight", Halved())
    assert not torch.equal(model(X), expected)
    parametrize.remove_parametrizations(model.head, "weight", leave_parametrized=False)
    assert type(model.head) is QatBlock and torch.equal(model(X), expected) and model.state_dict().keys() == keys
