"""An optimizer that was made before the model was prepared says that it trains nothing."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import fxquant as fq

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def prepared(model: nn.Module) -> nn.Module:
    return fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping(), (X,))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).train()


def test_an_optimizer_of_the_float_model_says_so_once() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained = prepared(model)
    trained(X).sum().backward()
    with pytest.warns(UserWarning, match=r"trains nothing.*Make it from prepared.parameters\(\)") as told:
        optimizer.step()
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert copy.deepcopy(optimizer).state_dict() == pickle.loads(pickle.dumps(optimizer)).state_dict()


@pytest.mark.parametrize("which", ["after", "both", "closure", "other"])
def test_others_say_nothing(which: str) -> None:
    model = net()
    kinds = {"closure": torch.optim.LBFGS}
    before = kinds.get(which, torch.optim.SGD)((net() if which == "other" else model).parameters(), lr=0.1)
    trained = prepared(model)
    after = torch.optim.SGD(trained.parameters(), 0.1)

    def loss(of: nn.Module) -> torch.Tensor:
        found = of(X).square().sum()
        found.backward()
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(trained)
        after.step()
        if which == "both":
            loss(model)
            before.step()
        elif which == "closure":
            before.step(lambda: loss(model).item())
        elif which == "other":
            before.step()
