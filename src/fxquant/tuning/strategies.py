"""Which plans are tried, in which order. A strategy is a generator: it yields generations of plans and gets trials.

    trials = yield Generation(plans, until_pass=True)

What it yields depends on the space, the seed and earlier trials only, so a search can be repeated, resumed, and run on
any number of workers. With `until_pass`, the trials end with the first one that passes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from fxquant.config.qconfig import Lift
from fxquant.tuning.plan import Plan
from fxquant.tuning.space import Key, Space
from fxquant.tuning.trial import Trial

WIDTH = 1024  # of a generation whose plans need nothing of each other: as many workers have something to do

Search = Generator["Generation", "list[Trial]", None]
Ranking = Callable[[Plan], Sequence[Key]]  # the ops that a plan may lift, the worst first


@dataclass(frozen=True, slots=True)
class Generation:
    """Plans that do not depend on each other."""

    plans: tuple[Plan, ...]
    until_pass: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What strategies know. `lifts` are the ways to lift an op, cheapest first."""

    space: Space
    by_sensitivity: Ranking
    by_mse: Ranking
    lifts: tuple[Lift, ...]
    seed: int


def basic(given: Setting) -> Search:
    """Return the recipes, best guess first; then the most accurate of them with ops lifted, the worst first."""
    first, *others = given.space.recipes
    trials = yield Generation((first,))
    if others and not trials[-1].passed:
        trials += yield Generation(tuple(others), until_pass=True)
    if any(trial.passed for trial in trials):
        return
    best = min(trials, key=lambda trial: trial.drop).plan
    yield from lift_worst(best, given.by_sensitivity(best), given.lifts)


def mse(given: Setting) -> Search:
    """Return the first recipe; then ops lifted, those first whose own output is the furthest from float."""
    plan = given.space.recipes[0]
    trials = yield Generation((plan,))
    if not trials[-1].passed:
        yield from lift_worst(plan, given.by_mse(plan), given.lifts)


def lift_worst(plan: Plan, ranked: Sequence[Key], lifts: Sequence[Lift]) -> Search:
    """Lift 1, 2, 4, ... ops until it passes, find the least number that does, and put back what was not needed."""
    for lift in lifts:
        counts = [*itertools.takewhile(lambda n: n < len(ranked), (2**i for i in itertools.count())), len(ranked)]
        counts = counts if ranked else []

        def lifting(keys: Sequence[Key], lift: Lift = lift) -> Plan:
            return plan.lifted(dict.fromkeys(keys, lift))

        trials = yield Generation(tuple(lifting(ranked[:count]) for count in counts), until_pass=True)
        if not trials or not trials[-1].passed:
            continue
        low, high = (0, *counts)[len(trials) - 1], counts[len(trials) - 1]
        while high - low > 1:
            middle = (low + high) // 2
            (trial,) = yield Generation((lifting(ranked[:middle]),))
            low, high = (low, middle) if trial.passed else (middle, high)
        yield from _put_back(list(ranked[:high]), lifting)
        return


def _put_back(kept: list[Key], lifting: Callable[[Sequence[Key]], Plan]) -> Search:
    """Lower again, one by one, what the model passes without; the last op made the difference and stays."""
    for key in kept[:-1]:
        fewer = [each for each in kept if each != key]
        (trial,) = yield Generation((lifting(fewer),))
        if trial.passed:
            kept = fewer


def exhaustive(given: Setting) -> Search:
    """All recipes, then with every op lifted, then every two, and so on: to the end, or what the limits allow."""
    keys = [unit.key for unit in given.space.units]
    lifted = (
        dict.fromkeys(chosen, lift)
        for count in range(1, len(keys) + 1)
        for lift in given.lifts
        for chosen in itertools.combinations(keys, count)
    )
    plans = (recipe.lifted(each) for each in itertools.chain([{}], lifted) for recipe in given.space.recipes)
    while generation := tuple(itertools.islice(plans, WIDTH)):
        yield Generation(generation)


def at_random(given: Setting) -> Search:
    """Return the first recipe, then random recipes with random ops lifted: few of them, mostly."""
    rng = random.Random(given.seed)
    keys = [unit.key for unit in given.space.units]

    def draw() -> Plan:
        share = rng.random() ** 2
        chosen: dict[Key, Lift] = {key: rng.choice(given.lifts) for key in keys if rng.random() < share}
        return rng.choice(given.space.recipes).lifted(chosen)

    yield Generation(given.space.recipes[:1])
    while True:
        yield Generation(tuple(draw() for _ in range(WIDTH)))
