"""Runs of a model that leave no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.capture.run_untraced import run


def test_random_numbers_start_over_and_the_users_go_on() -> None:
    model, x = nn.Dropout().train(), torch.ones(64)
    state = torch.get_rng_state()
    first, second = (run(model, (x,), {}) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_random_numbers_of_devices_without_the_model_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reached.append)
    fq.prepare_fx(nn.Linear(2, 2).eval(), fq.get_default_qconfig_mapping("x86"), (torch.randn(1, 2),))
    assert reached == []
