"""Every test starts from the same seed, on one torch thread (workers run side by side), and times nothing for long."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from hypothesis import HealthCheck, settings

from exported_once import export_once
from fxquant.engines import timing

_SLOW = (HealthCheck.too_slow,)  # how fast a machine is, and what else it does, is nothing to fail for
settings.register_profile("fxquant", deadline=None, derandomize=True, max_examples=50, suppress_health_check=_SLOW)
settings.register_profile("fuzz", deadline=None, max_examples=8000, suppress_health_check=_SLOW)
settings.load_profile("fxquant")


def pytest_configure() -> None:
    torch.set_num_threads(1)
    timing._PAUSE = timing._TURN = 0.002  # how fast engines are is a matter of benchmarks
    timing.time_interleaved.__kwdefaults__["seconds"] = 0.05


def pytest_collection_finish() -> None:
    """Keep modules and tests out of garbage collection: to look through them time and again is a tenth of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.default_generator.manual_seed(0)


@pytest.fixture
def exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what comes behind torch.export: the same model with the same inputs is exported once."""
    monkeypatch.setattr(torch.export, "export", functools.partial(export_once, torch.export.export))
