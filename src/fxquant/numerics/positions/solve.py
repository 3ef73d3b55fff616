"""The positions of least cost that keep all rules, by dynamic programming over the tensors that rules connect.

Tensors are eliminated one by one, the one with the fewest neighbours first: over the costs and rules that it is in, its
best position is kept for every choice of its neighbours. That is exact, and cheap since networks are long and narrow:
tables have as many axes as a tensor has neighbours. Where a table would be too large, the same is done in a window
around greedy repair, which moves on as long as the cost falls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fxquant.errors import ConfigError
from fxquant.numerics.positions.problem import Problem, Rule
from fxquant.numerics.positions.repair import repair

Table = tuple[tuple[str, ...], NDArray[np.float64]]
CELLS = 1 << 21  # of a table, at most
_REACH = (4, 8, 16, 32, 64)  # places to either side


def solve(problem: Problem) -> dict[str, int]:
    """Positions of all tensors. What no broken rule is connected to stays as it is."""
    at = dict(problem.start)
    for part in problem.parts():
        if part.broken(part.start):
            at.update(_solve_part(part))
    return at


def _solve_part(part: Problem) -> dict[str, int]:
    greedy = repair(part)
    best = None if part.broken(greedy) else greedy
    for reach in _REACH:
        found, exact = _around(part, part.start, reach)
        if found is None and not exact:
            break  # wider tables would be larger still
        if found is not None:
            best = _cheaper(part, best, found)
            if all(abs(found[name] - part.start[name]) < reach for name in found):
                return best
    if best is None:
        names = ", ".join(map(str, part.broken(greedy)))
        raise ConfigError(f"no positions of scales keep all that the target asks for: {names}.")
    return _walk(part, best)


def _walk(part: Problem, best: dict[str, int]) -> dict[str, int]:
    """Exact steps in a window of one place around a solution, then tensor by tensor, while the cost falls."""
    while True:
        found, exact = _around(part, best, 1)
        if not exact:
            found = _one_by_one(part, best)
        better = _cheaper(part, best, found or best)
        if part.total(better) >= part.total(best):
            return best
        best = better


def _one_by_one(part: Problem, at: Mapping[str, int]) -> dict[str, int]:
    found = dict(at)
    for name in found:
        for place in (found[name] - 1, found[name] + 1):
            moved = {**found, name: place}
            if part.cost(name, place) < part.cost(name, found[name]) and not part.broken(moved):
                found = moved
    return found


def _cheaper(part: Problem, a: dict[str, int] | None, b: dict[str, int]) -> dict[str, int]:
    return b if a is None or part.total(b) < part.total(a) else a


def _around(part: Problem, center: Mapping[str, int], reach: int) -> tuple[dict[str, int] | None, bool]:
    """(the best within some places of a center, or None; whether the tables were small enough to tell)."""
    places = {name: np.arange(at - reach, at + reach + 1) for name, at in center.items()}
    tables: list[Table] = [
        ((name,), np.array([part.cost(name, int(p)) for p in values])) for name, values in places.items()
    ]
    tables += [(rule.tensors, _forbidden(rule, places)) for rule in part.rules if _fits(rule.tensors, places)]
    if len(tables) < len(places) + len(part.rules):
        return None, False
    kept: list[tuple[str, tuple[str, ...], NDArray[np.int64]]] = []
    left = set(places)
    while left:
        name = min(sorted(left), key=lambda each: len(_neighbours(each, tables)))
        others = tuple(sorted(_neighbours(name, tables)))
        if not _fits((name, *others), places):
            return None, False
        mine = [table for table in tables if name in table[0]]
        total = _sum(mine, (name, *others), places)
        tables = [table for table in tables if name not in table[0]]
        tables.append((others, total.min(axis=0)))
        kept.append((name, others, total.argmin(axis=0)))
        left.remove(name)
    if not math.isfinite(sum(float(values) for _, values in tables)):
        return None, True
    found: dict[str, int] = {}
    for name, others, choice in reversed(kept):
        index = tuple(int(found[other] - places[other][0]) for other in others)
        found[name] = int(places[name][choice[index]])
    return found, True


def _fits(names: Sequence[str], places: Mapping[str, NDArray[np.int64]]) -> bool:
    return math.prod(len(places[name]) for name in names) <= CELLS


def _neighbours(name: str, tables: list[Table]) -> set[str]:
    return {other for names, _ in tables if name in names for other in names} - {name}


def _forbidden(rule: Rule, places: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """0 where a rule holds, infinity elsewhere; one axis for each of its tensors."""
    count = len(rule.tensors)
    at = {
        name: places[name].reshape([-1 if axis == own else 1 for axis in range(count)])
        for own, name in enumerate(rule.tensors)
    }
    holds = np.broadcast_to(rule.holds(at), [len(places[name]) for name in rule.tensors])
    return np.where(holds, 0.0, np.inf)


def _sum(tables: list[Table], names: tuple[str, ...], places: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    total = np.zeros([len(places[name]) for name in names])
    for own, values in tables:
        order = sorted(range(len(own)), key=lambda axis: names.index(own[axis]))
        shape = [len(places[name]) if name in own else 1 for name in names]
        total = total + values.transpose(order).reshape(shape)
    return total
