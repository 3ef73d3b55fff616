"""Time several ways to do the same thing, interleaved, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Milliseconds per call: the median, and the tenth and ninetieth percentile."""

    median: float
    low: float
    high: float
    runs: int


_PAUSE = 0.1  # seconds; the idle threads of a pool go on spinning for a while
_TURN = 0.1  # seconds of counted calls


def time_interleaved(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 2.0, rounds: int = 200
) -> dict[str, Timing]:
    """Call each in turn until the time or the rounds are used up; at least five rounds after one to warm up.

    Rounds differ in their order, so that no call always comes after the same other. A turn begins with a pause, in
    which the threads of the runtime that went before go to sleep, and with a call that is not counted.
    """
    spent: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle
    with torch.inference_mode():
        for call in calls.values():
            call()
            call()
        start = time.perf_counter()
        for count in range(rounds):
            if count >= 5 and time.perf_counter() - start > seconds:
                break
            shuffle(order)
            for name in order:
                call = calls[name]
                time.sleep(_PAUSE)
                call()
                end = time.perf_counter() + _TURN
                while True:
                    before = time.perf_counter()
                    call()
                    after = time.perf_counter()
                    spent[name].append((after - before) * 1e3)
                    if after >= end:
                        break
    return {name: _timing(times) for name, times in spent.items()}


def _timing(times: list[float]) -> Timing:
    times = sorted(times)
    edge = len(times) // 10
    return Timing(median=statistics.median(times), low=times[edge], high=times[-1 - edge], runs=len(times))
