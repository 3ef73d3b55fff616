"""Early decisions hold: they are those of the whole evaluation, but for the share that the confidence leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fxquant import ConfigError
from fxquant.tuning.judge import Judge, Score, read_score

NOTHING = nn.Identity()


def judge(evaluate: Any, **changes: Any) -> Judge:
    return Judge(evaluate=evaluate, **{"tolerance": 0.02, "relative": False, **changes})


def in_parts(values: Any, size: int = 50) -> Any:
    seen: list[int] = []

    def evaluate(model: nn.Module) -> Iterator[Any]:
        for start in range(0, len(values), size):
            seen.append(start)
            yield values[start : start + size]

    return evaluate, seen


def drawn(seed: int, drop: float, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong for the float model, and for one that is worse by `drop`; most samples agree."""
    rng = np.random.default_rng(seed)
    base = (rng.random(count) < 0.9).astype(float)
    lost = (rng.random(count) < drop / 0.9).astype(float)
    return base, base * (1 - lost)


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_a_clear_case_stops_early(drop: float) -> None:
    base, found = drawn(0, drop)
    evaluate, seen = in_parts(found)
    verdict = judge(evaluate).judge(NOTHING, read_score(base))
    assert verdict.passed == (drop == 0.0) and not verdict.complete
    assert len(seen) < len(base) / 50 and verdict.samples is not None and verdict.samples < len(base)


def test_early_decisions_are_those_of_the_whole() -> None:
    wrong = early = 0
    for seed in range(300):
        base, found = drawn(seed, 0.02 + 0.04 * (seed % 5 - 2) / 2, count=1000)
        verdict = judge(in_parts(found)[0]).judge(NOTHING, read_score(base))
        whole = judge(lambda model, found=found: torch.from_numpy(found)).judge(NOTHING, read_score(base))
        early += not verdict.complete
        wrong += verdict.passed != whole.passed
    assert early > 100 and wrong <= 0.05 * 300


def test_the_interval_covers_the_true_drop() -> None:
    covered = 0
    for seed in range(300):
        base, found = drawn(seed, 0.05, count=500)
        verdict = judge(lambda model, found=found: found.tolist()).judge(NOTHING, read_score(base))
        assert verdict.low is not None and verdict.high is not None
        covered += verdict.low <= 0.05 <= verdict.high
    assert covered >= 0.93 * 300


def test_numbers_are_compared_as_they_are() -> None:
    base = Score(value=0.8)
    assert judge(lambda model: 0.792, relative=True, tolerance=0.01).judge(NOTHING, base).passed
    assert not judge(lambda model: 0.791, relative=True, tolerance=0.01).judge(NOTHING, base).passed
    assert judge(lambda model: 0.79, tolerance=0.01).judge(NOTHING, base).passed
    lower = judge(lambda model: torch.tensor(0.85), higher_is_better=False, tolerance=0.1)
    assert lower.judge(NOTHING, base).passed and lower.judge(NOTHING, base).drop == pytest.approx(0.05)


def test_other_samples_than_the_float_model_had_are_an_error() -> None:
    with pytest.raises(ConfigError, match="same samples"):
        judge(lambda model: [1.0, 0.0, 1.0]).judge(NOTHING, read_score([1.0, 1.0]))
