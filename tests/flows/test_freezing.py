"""Batch norm statistics and observers held still: by hand, and by schedule."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.errors import ConfigError
from zoo import ZOO, images

MAPPING = fq.get_default_qat_qconfig_mapping("x86")


def prepared(name: str = "resnet") -> nn.Module:
    model = fq.prepare_qat_fx(ZOO[name].build().train(), MAPPING, ZOO[name].inputs())
    model(images(4))
    return model


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items() if "running" in k}


def ranges(model: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items() if k.endswith(("low", "high"))}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, b[key]) for key, value in a.items())


@pytest.mark.parametrize("name", ["resnet", "densenet"])  # norms inside of blocks, and on their own
def test_frozen_statistics_stay_and_are_used_also_after_train(name: str) -> None:
    model = prepared(name)
    before = statistics(model)
    fq.freeze_bn_stats(model)
    model.train()
    fq.freeze_observers(model)
    x = images(4)
    y = model(x)
    assert same(before, statistics(model))
    torch.testing.assert_close(y, copy.deepcopy(model).eval()(x), rtol=1e-4, atol=1e-4)
    assert same(before, statistics(pickle.loads(pickle.dumps(model)).train()))
    y.sum().backward()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(norm.weight.grad.abs().sum() > 0 for norm in norms)
    fq.unfreeze_bn_stats(model)
    model.train()(x)
    assert not same(before, statistics(model))


def test_frozen_observers_look_away_until_they_are_unfrozen() -> None:
    model = prepared()
    before = ranges(model)
    model.apply(fq.freeze_observers)
    model(images(4) * 10)
    assert same(before, ranges(model))
    fq.unfreeze_observers(model)
    model(images(4) * 10)
    assert not same(before, ranges(model))


def test_a_schedule_freezes_by_step_and_resumes() -> None:
    model = prepared()
    schedule = fq.FreezeSchedule(model, observers=1, bn_stats=2)
    states = []
    for _ in range(3):
        before = ranges(model), statistics(model)
        model.train()(images(4) * 3)
        states.append((same(before[0], ranges(model)), same(before[1], statistics(model))))
        schedule.step()
    assert states == [(False, False), (True, False), (True, True)]
    fresh = prepared()
    again = fq.FreezeSchedule(fresh, observers=1, bn_stats=2)
    again.load_state_dict(schedule.state_dict())
    before = statistics(fresh)
    fresh(images(4))
    assert same(before, statistics(fresh))
    with pytest.raises(ConfigError, match="expected a step"):
        fq.FreezeSchedule(model, observers=-1)
