"""The joint solution keeps every rule, is never worse than greedy repair, and is the best that brute force finds."""

from __future__ import annotations

import itertools
import random

import pytest

import fxquant as fq
from fxquant.config.limits import Measure
from fxquant.numerics.positions import solve as module
from fxquant.numerics.positions.problem import Problem, Rule
from fxquant.numerics.positions.repair import repair
from fxquant.numerics.positions.solve import solve

KIND = frozenset(("conv2d",))


def rule(measure: Measure, low: int | None, high: int | None, **names: object) -> Rule:
    position = fq.Position(measure=measure, kinds=KIND, low=low, high=high)
    return Rule(node="n", position=position, **names)  # type: ignore[arg-type]


def network(seed: int, blocks: int) -> Problem:
    """Convolutions with biases, adds that skip, products: each rule lets some room, in a random place."""
    draw = random.Random(seed)
    start = {"x0": draw.randint(3, 7)}
    rules = []

    def new(name: str) -> str:
        start[name] = draw.randint(2, 9)
        return name

    last = "x0"
    for k in range(blocks):
        w, b, y = new(f"w{k}"), new(f"b{k}"), new(f"y{k}")
        rules.append(rule("cut", 2, 6, i=(last,), o=y, w=w))
        rules.append(rule("bias", None, 7, i=(last,), w=w, b=b))
        rules.append(rule("bias_to_output", -3, None, o=y, b=b))
        if k % 2:
            s = new(f"s{k}")
            rules.append(rule("spread", None, 1, i=(last, y)))
            rules.append(rule("sum", -1, 2, i=(last, y), o=s))
            last = s
        elif k % 3 == 2:
            m = new(f"m{k}")
            rules.append(rule("product", 0, 5, i=(last, y), o=m))
            last = m
        else:
            last = y
    finer = {name: draw.uniform(2.0, 16.0) for name in start}
    weight = {name: draw.uniform(0.1, 1.0) for name in start}

    def cost(name: str, place: int) -> float:
        moved = place - start[name]
        return weight[name] * (finer[name] ** moved if moved > 0 else 4.0**-moved)

    return Problem(start=start, cost=cost, rules=tuple(rules))


@pytest.mark.parametrize("seed", range(12))
def test_it_keeps_all_rules_and_is_never_worse_than_repair(seed: int) -> None:
    problem = network(seed, blocks=9)
    greedy, joint = repair(problem), solve(problem)
    assert problem.broken(problem.start) and not problem.broken(joint)
    assert problem.broken(greedy) or problem.total(joint) <= problem.total(greedy)


def test_it_is_better_than_repair_on_the_whole() -> None:
    pairs = [(repair(p), solve(p), p) for p in (network(seed, blocks=9) for seed in range(12))]
    assert any(p.broken(greedy) or p.total(joint) < 0.8 * p.total(greedy) for greedy, joint, p in pairs)


@pytest.mark.parametrize("cells", [module.CELLS, 200])
def test_it_finds_what_brute_force_finds(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CELLS", cells)
    for seed in range(6):
        problem = network(seed, blocks=1)
        names = list(problem.start)
        choices = (range(problem.start[name] - 5, problem.start[name] + 6) for name in names)
        every = (dict(zip(names, places, strict=True)) for places in itertools.product(*choices))
        best = min(problem.total(at) for at in every if not problem.broken(at))
        found = solve(problem)
        assert not problem.broken(found)
        if cells == module.CELLS and cells > 200:
            assert problem.total(found) == pytest.approx(best)
        else:
            assert problem.total(found) < 4 * best  # a walk from greedy repair may end beside the best


def test_nothing_moves_where_all_rules_hold() -> None:
    start = {"x": 4, "y": 4, "w": 6}
    problem = Problem(
        start=start, cost=lambda name, place: float(place), rules=(rule("cut", 0, 16, i=("x",), o="y", w="w"),)
    )
    assert solve(problem) == start


def test_rules_that_contradict_each_other_are_named() -> None:
    rules = (rule("input", 0, 3, i=("x",)), rule("output", 5, None, o="x"))
    problem = Problem(start={"x": 4}, cost=lambda name, place: 1.0, rules=rules)
    with pytest.raises(fq.ConfigError, match="no positions of scales keep all"):
        solve(problem)
