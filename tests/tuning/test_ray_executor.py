"""Trials on a Ray cluster."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fq
from tuning_models import Dying, Share, batches, broken

TESTS = Path(__file__).parents[1]


tune = functools.partial(fq.tune, engine="onednn")  # it makes no code for each trial


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray = pytest.importorskip("ray", reason="fxquant[ray] is not installed")
    settings = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}
    try:
        ray.init(**settings, runtime_env={"env_vars": {"PYTHONPATH": _path()}})
    except Exception as error:  # Ray raises a plain one
        if "timed out" not in str(error):
            raise
        pytest.skip(f"Ray gave up starting a cluster on this machine: {error}")
    yield ray
    ray.shutdown()


def _path() -> str:
    return os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])


@pytest.mark.slow
def test_ray_gives_the_same_result_also_when_a_worker_dies(cluster: Any, tmp_path: Path) -> None:
    model = broken()
    alone = tune(model, batches(), Share(model), tolerance=0.05)
    together = tune(model, batches(), Dying(model, tmp_path, 1), tolerance=0.05, executor=fq.Ray(workers=2))
    assert not list(tmp_path.iterdir())
    assert [t.score for t in together.trials] == [t.score for t in alone.trials]
    assert together.best.plan == alone.best.plan


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 4)).eval(), torch.randn(2, 8)
    with pytest.raises(fq.ConfigError, match=r"fxquant\[ray\]"):
        fq.tune(model, [x], lambda net: 1.0, executor=fq.Ray(), engine="reference")
