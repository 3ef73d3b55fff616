"""A plan as a plain value: its key, JSON, and what it changes of the rules' answers."""

from __future__ import annotations

import json

import fxquant as fq
from fxquant.config.rules import Site
from fxquant.tuning.plan import Plan, PlanRules

PLAN = Plan(activation=(("observer", "minmax"),)).lifted({("head", "linear"): "float", ("a", "conv2d"): "weight_only"})


def test_a_plan_survives_json() -> None:
    again = Plan.from_json(json.loads(json.dumps(PLAN.to_json())))
    assert again == PLAN and again.key == PLAN.key
    assert Plan().to_json() == {} and Plan().key != PLAN.key


def test_a_plan_changes_the_answers() -> None:
    rules = PlanRules({"": fq.default_qconfig}, lambda one, other: one is other, PLAN)

    def answer(path: str, kind: str) -> fq.QConfig | None:
        return rules.choose(Site(path=path, kind=kind, spelling=kind)).qconfig

    assert answer("head", "linear") is None
    lifted, plain = answer("a", "conv2d"), answer("b", "conv2d")
    assert lifted is not None and lifted.activation is None
    assert plain is not None and isinstance(plain.activation, fq.Spec) and plain.activation.observer == "minmax"


def test_a_plan_reads_well() -> None:
    assert str(PLAN) == "as asked, observer minmax, 2 lifted: a, head"
