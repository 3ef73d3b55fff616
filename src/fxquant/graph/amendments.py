"""Changes to what the rules and a target decide, found after calibration: ops that are lifted, other grids of tensors.

Both go by names of one prepared model: the path of a region, with a node of its float graph or the id of a quantizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fxquant.config.qconfig import Lift

Place = tuple[str, str]  # the path of a region; the name of a node, or the id of a quantizer


@dataclass(frozen=True, slots=True)
class Lifted:
    """An op that has more precision than its rule says, and why."""

    mode: Lift
    why: str


@dataclass(frozen=True, slots=True)
class Regridded:
    """Fields of the spec of a quantizer that are others than its rule says, and why."""

    changes: tuple[tuple[str, Any], ...]
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendments:
    """What is changed. Passes that apply it: passes/amend.py."""

    lifts: Mapping[Place, Lifted] = field(default_factory=dict)
    grids: Mapping[Place, Regridded] = field(default_factory=dict)

    def saying(self, more: str) -> Amendments:
        """Return the same, with more to every reason."""
        return Amendments(
            lifts={place: replace(each, why=each.why + more) for place, each in self.lifts.items()},
            grids={place: replace(each, why=each.why + more) for place, each in self.grids.items()},
        )

    def __bool__(self) -> bool:
        return bool(self.lifts or self.grids)
