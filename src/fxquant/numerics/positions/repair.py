"""Greedy repair: rule by rule, one tensor is moved until it holds, in a few rounds. What vendors' tools do.

It is where the search for the joint solution starts, and what that has to beat.
"""

from __future__ import annotations

from fxquant.numerics.positions.problem import Problem, Rule

ROUNDS = 5


def repair(problem: Problem) -> dict[str, int]:
    """Positions after repair; rules may still be broken where they pull a tensor in two directions."""
    at = dict(problem.start)
    for _ in range(ROUNDS):
        broken = problem.broken(at)
        if not broken:
            break
        for rule in broken:
            _mend(rule, at)
    return at


def _mend(rule: Rule, at: dict[str, int]) -> None:
    """Move the weight for a cut, the bias for a bias, the finest input for a spread, the output otherwise."""
    low, high = rule.position.bounds
    measure, value = rule.position.measure, int(rule.value(at))
    wanted = int(min(max(value, low), high))
    if measure == "spread":
        limit = min(at[name] for name in rule.i) + wanted
        at.update({name: min(at[name], limit) for name in rule.i})
    elif measure == "cut":
        at[rule.w] += wanted - value
    elif measure in ("bias", "bias_to_output"):
        at[rule.b] -= wanted - value
    elif measure == "input":
        at[rule.i[0]] = wanted
    elif measure == "output":
        at[rule.o] = wanted
    else:
        at[rule.o] -= wanted - value
