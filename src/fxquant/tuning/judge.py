"""Whether a model is within the tolerance, from what the user's `evaluate` gives.

A number is compared as it is. Results by sample are compared in pairs with those of the float model: with the mean d of
the differences over n of N samples, the drop over all N lies in

    d -+ z sqrt(s^2 / n) sqrt((N - n) / (N - 1)),        s^2 = (sum (d_i - d)^2 + 2 R^2) / (n + 1)

R is the spread of the results: two made-up samples keep the interval open while few differ. An `evaluate` that yields
its results in parts is stopped as soon as the interval lies on one side of the limit. It is looked at when n doubles;
z is shared out among these looks, so that all of them together hold with the confidence asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fxquant.errors import ConfigError

Evaluate = Callable[[nn.Module], Any]
FIRST_LOOK = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What an evaluation gave: the mean, and the results by sample where there are any."""

    value: float
    samples: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The score of a trial beside the float model's. `low` and `high` bound the drop; `complete`: all was evaluated."""

    score: float
    drop: float
    passed: bool
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares trials with the float model's score. The drop is positive where a trial is worse."""

    evaluate: Evaluate = field(repr=False)
    tolerance: float
    _: KW_ONLY
    relative: bool = True
    higher_is_better: bool = True
    confidence: float = 0.95
    early_stop: bool = True

    def measure(self, model: nn.Module) -> Score:
        """Return the whole evaluation of a model."""
        with torch.no_grad():
            result = self.evaluate(model)
        return read_score(result)

    def limit(self, base: Score) -> float:
        """Return the largest drop that passes."""
        return self.tolerance * abs(base.value) if self.relative else self.tolerance

    def drop(self, value: float, base: Score) -> float:
        """Tell how much worse a value is than the float model's."""
        return base.value - value if self.higher_is_better else value - base.value

    def judge(self, model: nn.Module, base: Score) -> Verdict:
        """Evaluate a trial, as far as it takes to tell."""
        with torch.no_grad():
            result = self.evaluate(model)
            if isinstance(result, Iterator) and base.samples is not None:
                return self._in_parts(result, base, base.samples)
            score = read_score(result)
        if score.samples is None or base.samples is None:
            drop = self.drop(score.value, base)
            return Verdict(score=score.value, drop=drop, passed=_within(drop, self.limit(base)))
        return self._by_sample(np.array(score.samples), base, base.samples, looks=1)

    def _in_parts(self, parts: Iterator[object], base: Score, samples: Sequence[float]) -> Verdict:
        found: list[float] = []
        looks, at, limit = _looks(len(samples)), FIRST_LOOK, self.limit(base)
        for part in parts:
            found += _numbers(part)
            if self.early_stop and at <= len(found) < len(samples):
                verdict = self._by_sample(np.array(found), base, samples, looks)
                assert verdict.low is not None and verdict.high is not None
                if verdict.high < limit or verdict.low > limit:
                    close = getattr(parts, "close", None)
                    if close is not None:
                        close()
                    return verdict
                while at <= len(found):
                    at *= 2
        return self._by_sample(np.array(found), base, samples, looks=1)

    def _by_sample(self, found: NDArray[np.float64], base: Score, samples: Sequence[float], looks: int) -> Verdict:
        count, every = len(found), len(samples)
        if not 0 < count <= every:
            raise ConfigError(
                f"evaluate gave results of {count} samples for a trial, and of {every} for the float model. It has to "
                "give the same samples in the same order each time."
            )
        paired = np.array(samples[:count])
        worse = paired - found if self.higher_is_better else found - paired
        low, high = interval(worse, every, _spread(paired, found), self.confidence, looks)
        mean, complete = float(worse.mean()), count == every
        # of part of the samples, the float model's whole score less the drop is the better guess
        score = float(found.mean()) if complete else base.value - (mean if self.higher_is_better else -mean)
        passed = _within(mean if complete else high, self.limit(base))
        if complete:  # what it would be on other samples like these
            low, high = interval(worse, None, _spread(paired, found), self.confidence, 1)
        return Verdict(score=score, drop=mean, passed=passed, low=low, high=high, samples=count, complete=complete)


def interval(
    worse: NDArray[np.float64], every: int | None, spread: float, confidence: float, looks: int
) -> tuple[float, float]:
    """Bounds of the mean drop over `every` sample, or over as many as there could be."""
    count, mean = len(worse), float(worse.mean())
    deviation = math.sqrt((float(((worse - mean) ** 2).sum()) + 2 * spread**2) / (count + 1))
    rest = 1.0 if every is None else math.sqrt((every - count) / max(every - 1, 1))
    z = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * looks))
    wide = z * deviation / math.sqrt(count) * rest
    return mean - wide, mean + wide


def read_score(result: object) -> Score:
    """Return a number, results by sample, or an iterator of parts of these."""
    if isinstance(result, (bool, int, float)) or (
        isinstance(result, (Tensor, np.generic, np.ndarray)) and result.ndim == 0
    ):
        value = float(result)
        if math.isnan(value):
            raise ConfigError("evaluate gave nan. Give a number, or results by sample.")
        return Score(value=value)
    if isinstance(result, Iterator):
        found = [number for part in result for number in _numbers(part)]
    elif isinstance(result, (Tensor, np.ndarray, list, tuple)):
        found = _numbers(result)
    else:
        raise ConfigError(
            f"evaluate gave a {type(result).__name__}. Give a number, a 1-D tensor of results by sample, or yield "
            "such tensors part by part."
        )
    if not found or any(map(math.isnan, found)):
        raise ConfigError("evaluate gave no results, or nan among them.")
    return Score(value=float(np.mean(found)), samples=tuple(found))


def _numbers(part: object) -> list[float]:
    array = np.asarray(part.detach().cpu() if isinstance(part, Tensor) else part, dtype=np.float64)
    if array.ndim > 1:
        raise ConfigError(f"evaluate gave results of shape {array.shape}. Give one number for each sample.")
    return [float(value) for value in array.reshape(-1)]


def _looks(every: int) -> int:
    return max(1, math.ceil(math.log2(max(every / FIRST_LOOK, 1))) + 1)


def _spread(*values: NDArray[np.float64]) -> float:
    """Of all results; where all are equal, as large as they are: others might still be 0."""
    low, high = min(float(value.min()) for value in values), max(float(value.max()) for value in values)
    return high - low or abs(high) or 1e-12


def _within(drop: float, limit: float) -> bool:
    return drop <= limit + 1e-12
