"""A plan: what one trial decides, as a plain value that is written down, sent to workers and compared.

    mode          static, dynamic or weight_only for all ops; None leaves what the rules say
    activation    changes to the specs of static activations, such as {"observer": "percentile"}
    weight        changes to the specs of weights
    lift          ops with more precision than the rest: (path, kind) -> float, weight_only or dynamic

It changes what the user's rules answer; an op that they leave in float stays so.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fxquant.config.qconfig import Lift, QConfig, as_mode
from fxquant.config.rules import Choice, Rules, Site
from fxquant.config.spec import Spec
from fxquant.files import Json

Mode = Literal["static", "dynamic", "weight_only"]
Changes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a trial decides. See the module docstring."""

    mode: Mode | None = None
    activation: Changes = ()
    weight: Changes = ()
    lift: tuple[tuple[str, str, Lift], ...] = ()

    def lifted(self, units: Mapping[tuple[str, str], Lift]) -> Plan:
        """Return the same plan with these ops lifted, and no others."""
        rows = sorted((path, kind, mode) for (path, kind), mode in units.items())
        return dataclasses.replace(self, lift=tuple(rows))

    def to_json(self) -> Json:
        """Plain values; empty fields are left out."""
        found: dict[str, Any] = {
            "mode": self.mode,
            "activation": dict(self.activation),
            "weight": dict(self.weight),
            "lift": [list(row) for row in self.lift],
        }
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, given: Json) -> Plan:
        """Return what `to_json` gave."""
        return cls(
            mode=given.get("mode"),
            activation=tuple(sorted(given.get("activation", {}).items())),
            weight=tuple(sorted(given.get("weight", {}).items())),
            lift=tuple((path, kind, mode) for path, kind, mode in given.get("lift", ())),
        )

    @property
    def key(self) -> str:
        """The same for equal plans, also in other processes."""
        return json.dumps(self.to_json(), sort_keys=True)

    def __str__(self) -> str:
        parts: list[str] = [self.mode or "as asked"]
        parts += [f"{name} {value}" for name, value in (*self.activation, *self.weight)]
        if self.lift:
            parts.append(f"{len(self.lift)} lifted: {', '.join(path or '<root>' for path, _, _ in self.lift[:3])}")
        return ", ".join(parts) + (", ..." if len(self.lift) > 3 else "")


class PlanRules(Rules):
    """The user's rules, with what a plan changes of their answers."""

    def __init__(self, source: object, same_op: Callable[[object, object], bool], plan: Plan) -> None:
        super().__init__(source, same_op)
        self._plan = plan
        self._lift = {(path, kind): mode for path, kind, mode in plan.lift}

    def choose(self, site: Site) -> Choice:
        """Return the user's answer, changed by the plan."""
        choice = super().choose(site)
        if choice.qconfig is None:
            return choice
        lift = self._lift.get((site.path, site.kind))
        if lift is not None:
            return Choice(qconfig=as_mode(choice.qconfig, lift), rule=f"tune: {lift}")
        qconfig = choice.qconfig if self._plan.mode is None else as_mode(choice.qconfig, self._plan.mode)
        if qconfig is not None:
            qconfig = _changed(qconfig, dict(self._plan.activation), dict(self._plan.weight))
        return choice if qconfig == choice.qconfig else Choice(qconfig=qconfig, rule="tune")


def _changed(qconfig: QConfig, activation: dict[str, object], weight: dict[str, object]) -> QConfig:
    made: dict[str, Any] = {}
    if activation and isinstance(qconfig.activation, Spec) and not qconfig.activation.dynamic:
        made["activation"] = qconfig.activation.with_(**activation)
    if weight and isinstance(qconfig.weight, Spec):
        made["weight"] = qconfig.weight.with_(**weight)
    return dataclasses.replace(qconfig, **made) if made else qconfig


def watching_all(source: object) -> object:
    """Return the user's rules with histograms where they ask for extremes.

    Then any search for a range is free later on.
    """

    def watch(qconfig: QConfig | None) -> QConfig | None:
        if qconfig is None or not isinstance(qconfig.activation, Spec) or qconfig.activation.observer != "minmax":
            return qconfig
        if qconfig.activation.dynamic:
            return qconfig
        return dataclasses.replace(qconfig, activation=qconfig.activation.with_(observer="histogram"))

    rules = Rules(source, lambda one, other: one is other)
    if rules.has_setters:
        return source
    asked = rules.mapping.to_dict()
    made = type(rules.mapping)()
    made.set_global(watch(asked.pop("")))
    made.standalone = dict(rules.mapping.standalone)
    for name in ("object_type", "module_name_regex", "module_name", "module_name_object_type_order"):
        for *place, qconfig in asked[name]:
            getattr(made, f"set_{name}")(*place, watch(qconfig))
    return made
