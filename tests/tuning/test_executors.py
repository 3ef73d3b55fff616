"""Trials in processes of their own, which may die."""

from __future__ import annotations

import functools
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import fxquant as fq
from tuning_models import Dying, Share, batches, broken, whole

tune = functools.partial(fq.tune, engine="onednn")  # it makes no code for each trial


def test_processes_give_the_same_result(tmp_path: Path) -> None:
    model = broken()
    alone = tune(model, batches(), Share(model), tolerance=0.05)
    together = tune(model, batches(), Share(model), tolerance=0.05, executor=fq.Processes(workers=2))
    assert [t.plan for t in together.trials] == [t.plan for t in alone.trials]
    assert [t.score for t in together.trials] == [t.score for t in alone.trials]
    assert together.best.plan == alone.best.plan


def test_a_worker_that_dies_is_retried(tmp_path: Path) -> None:
    model = whole()
    executor = fq.Processes(workers=1)
    result = tune(model, batches(), Dying(model, tmp_path, 2), tolerance=0.1, executor=executor)
    assert result.passed and not result.trials[0].error and not list(tmp_path.iterdir())


def test_a_worker_that_always_dies_is_a_trial_with_an_error(tmp_path: Path) -> None:
    model = whole()
    evaluate = Dying(model, tmp_path, 3)
    result = tune(model, batches(), evaluate, tolerance=0.1, executor=fq.Processes(workers=1))
    assert "died 3 times" in result.trials[0].error and result.passed


def test_an_evaluation_that_raises_in_a_worker_says_what_it_said() -> None:
    model, home = whole(), os.getpid()

    def evaluate(given: Any) -> float:
        if os.getpid() != home:
            raise KeyError("the labels")
        return 1.0

    with pytest.raises(fq.FxQuantError, match="the labels") as raised:
        tune(model, batches(), evaluate, executor="processes")
    assert not multiprocessing.active_children(), raised  # while the error is held, nothing else ends them
