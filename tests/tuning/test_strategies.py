"""Which plans a strategy tries, by trials that are made up: no model is run."""

from __future__ import annotations

import itertools

from fxquant.tuning.plan import Plan
from fxquant.tuning.space import Key, Space, Unit
from fxquant.tuning.strategies import Search, Setting, at_random, basic, exhaustive, mse
from fxquant.tuning.trial import Trial

KEYS: list[Key] = [(name, "conv2d") for name in "abcdefgh"]
BAD = {"b", "e"}  # what a model has to lift to pass


def setting(*recipes: Plan) -> Setting:
    units = tuple(Unit(path=path, kind=kind, macs=1.0, weights=1.0) for path, kind in KEYS)
    space = Space(recipes=recipes or (Plan(),), units=units)
    worst = [("e", "conv2d"), ("a", "conv2d"), ("b", "conv2d"), *KEYS[2:4], *KEYS[5:]]
    return Setting(space=space, by_sensitivity=lambda plan: worst, by_mse=lambda plan: worst, lifts=("float",), seed=0)


def run(search: Search, most: int = 50) -> list[Trial]:
    taken: list[Trial] = []
    generation = next(search)
    while True:
        now = []
        for plan in generation.plans[: most - len(taken)]:
            lifted = {path for path, _, _ in plan.lift}
            now.append(Trial(plan=plan, passed=lifted >= BAD, drop=float(len(BAD - lifted)), time=1.0, score=0.0))
            if generation.until_pass and now[-1].passed:
                break
        taken += now
        if len(taken) >= most:
            return taken
        try:
            generation = search.send(now)
        except StopIteration:
            return taken


def test_the_worst_are_lifted_until_it_passes_and_the_rest_is_put_back() -> None:
    for strategy in (basic, mse):
        trials = run(strategy(setting()))
        best = min((trial for trial in trials if trial.passed), key=lambda trial: len(trial.plan.lift))
        assert {path for path, _, _ in best.plan.lift} == BAD
        assert len(trials) < 12


def test_a_recipe_that_passes_ends_the_search() -> None:
    passing = Plan().lifted(dict.fromkeys(KEYS, "float"))
    assert len(run(basic(setting(passing)))) == 1


def test_all_plans_are_tried_once_the_smallest_changes_first() -> None:
    trials = run(exhaustive(setting()), most=300)
    assert len({trial.plan.key for trial in trials}) == len(trials) == 2 ** len(KEYS)
    sizes = [len(trial.plan.lift) for trial in trials]
    assert sizes == sorted(sizes)


def test_random_plans_repeat_with_the_seed() -> None:
    one, other = (run(at_random(setting()), most=20) for _ in range(2))
    assert [trial.plan for trial in one] == [trial.plan for trial in other]
    assert len(set(itertools.chain(trial.plan.key for trial in one))) > 5
