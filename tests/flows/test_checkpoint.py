"""A run goes on from a checkpoint that is one as a whole, or is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.flows.checkpoint import resume, write_checkpoint
from fxquant.flows.freezing import FreezeSchedule


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    x = torch.randn(4, 3)
    prepared = fq.prepare_qat_fx(nn.Sequential(nn.Linear(3, 2)).train(), fq.get_default_qat_qconfig_mapping(), (x,))
    prepared(x).sum().backward()
    return prepared


def parts_of(model: nn.Module, steps: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW([{"params": list(model.parameters()), "lr": 1e-3}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for _ in range(steps):
        optimizer.step()
        schedule.step()
    return {
        **{"model": model, "optimizer": optimizer, "schedule": schedule},
        "freezing": FreezeSchedule(model, observers=5),
    }


CHANGES: dict[str, Callable[[Any], Any]] = {
    "history": lambda saved: saved.update(history=["x"]),
    "history of none": lambda saved: saved.update(history=None),
    "rng": lambda saved: saved.update(rng=torch.zeros(3, dtype=torch.uint8)),
    "rng that is none": lambda saved: saved.update(rng=1.5),
    "schedule": lambda saved: saved["schedule"].update(last_epoch=None),
    "schedule with a method": lambda saved: saved["schedule"].update(step=1),
    "schedule of nan": lambda saved: saved["schedule"].update(base_lrs=[float("nan")]),
    "freezing": lambda saved: saved.update(freezing={"count": "x"}),
    "optimizer": lambda saved: saved.update(optimizer=1.5),
    "optimizer with other betas": lambda saved: saved["optimizer"]["param_groups"][0].update(betas=0.9),
    "optimizer with another state": lambda saved: saved["optimizer"]["state"][0].update(exp_avg=torch.zeros(99)),
    "optimizer of other parameters": lambda saved: saved["optimizer"]["state"].update({99: {"step": 1}}),
    "best_state": lambda saved: saved.update(best_state={}),
    "model": lambda saved: saved.update(model={"0.weight": 5}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_that_does_not_fit_changes_nothing(trained: nn.Module, tmp_path: Path, change: str) -> None:
    model = copy.deepcopy(trained)
    path, state = tmp_path / "run.pt", model.state_dict()
    write_checkpoint(path, parts_of(trained, 2), [0.5], trained.state_dict())
    assert resume(path, parts_of(copy.deepcopy(trained), 0))[0] == [0.5]
    saved = torch.load(path, weights_only=True)
    CHANGES[change](saved)
    torch.save(saved, path)
    before, rng = copy.deepcopy(state), torch.get_rng_state()
    with pytest.raises(fq.ConfigError, match=rf"run\.pt.*of another model or run: its {change.split()[0]}"):
        resume(path, parts_of(model, 0))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
