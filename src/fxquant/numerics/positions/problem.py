"""Positions of tensors as a small integer program.

    least   sum of cost_t(p_t)          over whole numbers p_t, one for each tensor t
    so that every rule holds            low <= measure of a few p_t <= high

The cost of a tensor is its rounding noise relative to its power, so that costs of tensors add up as noise does along a
network. A rule is a Position of the target at one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fxquant.config.limits import Position
from fxquant.numerics.positions.measure import Value, measured, terms


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A Position at a kernel, with the names of the tensors that it is about."""

    node: str
    position: Position
    i: tuple[str, ...] = ()
    o: str = ""
    w: str = ""
    b: str = ""

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Those that the measure is of, each once."""
        asked = terms(self.position.measure)
        return tuple(dict.fromkeys(name for letter in "iowb" if letter in asked for name in self._named(letter)))

    def _named(self, letter: str) -> tuple[str, ...]:
        return self.i if letter == "i" else (getattr(self, letter),)

    def value(self, at: Mapping[str, Value]) -> Value:
        """Return the measure, for positions that are numbers or arrays that broadcast."""
        asked = terms(self.position.measure)
        inputs = [at[name] for name in self.i] if "i" in asked else []
        o, w, b = (at[getattr(self, letter)] if letter in asked else 0 for letter in "owb")
        return measured(self.position.measure, inputs, o, w, b)

    def holds(self, at: Mapping[str, Value]) -> bool | NDArray[np.bool_]:
        low, high = self.position.bounds
        value = self.value(at)
        return (value >= low) & (value <= high)

    def __str__(self) -> str:
        return f"{self.position} at {self.node}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Where the tensors are, what each position of them costs, and the rules."""

    start: Mapping[str, int]
    cost: Callable[[str, int], float]
    rules: tuple[Rule, ...]

    def total(self, at: Mapping[str, int]) -> float:
        return sum(self.cost(name, at[name]) for name in self.start)

    def broken(self, at: Mapping[str, int]) -> list[Rule]:
        return [rule for rule in self.rules if not rule.holds(at)]

    def parts(self) -> list[Problem]:
        """Return the problem by tensors that rules connect; tensors without rules are in none."""
        parent = {name: name for name in self.start}

        def find(name: str) -> str:
            while parent[name] != name:
                name = parent[name]
            return name

        for rule in self.rules:
            for name in rule.tensors[1:]:
                parent[find(name)] = find(rule.tensors[0])
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            found.setdefault(find(rule.tensors[0]), []).append(rule)
        return [
            Problem(
                start={name: at for name, at in self.start.items() if find(name) == root},
                cost=self.cost,
                rules=tuple(rules),
            )
            for root, rules in found.items()
        ]
