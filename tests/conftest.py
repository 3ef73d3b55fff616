"""Every test starts from the same seed, on one torch thread (workers run side by side), and times nothing for long.

`--all` runs everything. Without it, a test marked `slow` is left out, and of the cases of one marked `broad`, which has
many of one promise, a fifth are run: always the same, but others for each test, so that each model is in some.
"""

from __future__ import annotations

import functools
import gc
import zlib
from collections import defaultdict

import pytest
import torch
from hypothesis import HealthCheck, settings

from exported_once import export_once
from fxquant.engines import timing

_SLOW = (HealthCheck.too_slow,)  # how fast a machine is, and what else it does, is nothing to fail for
settings.register_profile("fxquant", deadline=None, derandomize=True, max_examples=50, suppress_health_check=_SLOW)
settings.register_profile("fuzz", deadline=None, max_examples=8000, suppress_health_check=_SLOW)
settings.load_profile("fxquant")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all cases of broad tests, and slow ones")


def pytest_configure() -> None:
    torch.set_num_threads(1)
    timing._PAUSE = timing._TURN = 0.002  # how fast engines are is a matter of benchmarks
    timing.time_interleaved.__kwdefaults__["seconds"] = 0.05


@pytest.hookimpl(trylast=True)  # of what -k and -m left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("broad"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = {item for item in items if item.get_closest_marker("slow")}
    for several in cases.values():
        several.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        left_out.update(several[(len(several) + 4) // 5 :])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


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
