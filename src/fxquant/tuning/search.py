"""The loop of a search: generations of a strategy in, trials out, until a limit is reached or the strategy is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fxquant.tuning.executors import Executor
from fxquant.tuning.journal import Journal
from fxquant.tuning.plan import Plan
from fxquant.tuning.strategies import Search
from fxquant.tuning.trial import Trial, Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a search ends. A timeout of 0 ends it with the first trial that passes; None is no limit."""

    max_trials: int
    timeout: float | None


@dataclass(slots=True)
class Loop:
    """Trials are taken in the order of their plans. Each plan is tried once: what the journal has is not repeated."""

    executor: Executor
    journal: Journal
    limits: Limits
    on_trial: Callable[[Trial], None]
    clock: Callable[[], float] = time.monotonic

    def run(self, strategy: Search) -> tuple[list[Trial], str]:
        """Return the trials, and why there are no more."""
        taken: list[Trial] = []
        start = self.clock()
        try:
            generation = next(strategy)
            while True:
                now: list[Trial] = []
                for trial in self._trials(generation.plans[: self.limits.max_trials - len(taken)]):
                    now.append(trial)
                    if trial.plan.key not in {each.plan.key for each in taken}:
                        taken.append(trial)
                        self.on_trial(trial)
                    if self.limits.timeout == 0 and trial.passed:
                        return taken, "the first that passes"
                    if len(taken) >= self.limits.max_trials:
                        most = self.limits.max_trials
                        return taken, f"{most} trial{'s' * (most != 1)}"
                    if self.limits.timeout and self.clock() - start > self.limits.timeout:
                        return taken, f"{self.limits.timeout:g} seconds"
                    if generation.until_pass and trial.passed:
                        break
                generation = strategy.send(now)
        except StopIteration:
            return taken, "nothing left to try"
        finally:
            strategy.close()

    def _trials(self, plans: tuple[Plan, ...]) -> Iterator[Trial]:
        """Trials in the order of the plans: from the journal, or run now."""
        known = self.journal.by_plan()
        fresh = [plan for plan in dict.fromkeys(plans) if plan.key not in known]
        running = self.executor.run(fresh, self._done) if fresh else iter(())
        found: dict[str, Trial] = {}
        for plan in plans:
            if plan.key in known:
                yield Trial.from_json(known[plan.key])
                continue
            if plan.key not in found:
                found[plan.key] = next(running)
            yield found[plan.key]

    def _done(self, trial: Trial) -> None:
        if trial.plan.key not in self.journal.by_plan():
            self.journal.add({"kind": "trial", **trial.to_json()})


def confirm(work: Work, journal: Journal, trial: Trial) -> Trial:
    """Return the trial with the whole evaluation, where it was stopped early.

    From the journal, if it was done before.
    """
    if trial.complete:
        return trial
    before = journal.by_plan("whole").get(trial.plan.key)
    if before is not None:
        return Trial.from_json(before)
    whole = work.run_whole(trial.plan)
    journal.add({"kind": "whole", **whole.to_json()})
    return whole
