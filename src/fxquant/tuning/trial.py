"""One trial: decide by a plan from the common calibration, convert, evaluate."""

from __future__ import annotations

import dataclasses
import functools
import time
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from torch import nn

from fxquant.config.target import Target
from fxquant.engines.choose import AUTO
from fxquant.engines.engine import Engine
from fxquant.engines.native.settings import Native
from fxquant.engines.table import as_engine
from fxquant.errors import FxQuantError
from fxquant.files import Json
from fxquant.flows.decide import decide
from fxquant.ops.table import OPS
from fxquant.passes.candidates import same_op
from fxquant.quantize_fx import convert_fx
from fxquant.tables.explain import explain
from fxquant.tuning.judge import Judge, Score
from fxquant.tuning.plan import Plan, PlanRules
from fxquant.tuning.space import Space, runs_of

AnyEngine = Engine | Native | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came out of a plan. `time` and `size` are predicted shares of the float model's.

    `low` and `high` bound the drop where there are results by sample; `complete` is False where that was enough to
    stop early. A trial that could not be made has an `error`, and does not pass.
    """

    plan: Plan
    score: float = float("nan")
    drop: float = float("inf")
    passed: bool = False
    time: float = 1.0
    size: float = 1.0
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    complete: bool = True
    seconds: float = 0.0
    error: str = ""

    def to_json(self) -> Json:
        """Plain values."""
        found = {**asdict(self), "plan": self.plan.to_json()}
        return found if not self.error else {name: found[name] for name in ("plan", "error", "seconds")}

    @classmethod
    def from_json(cls, given: Json) -> Trial:
        """Return what `to_json` gave."""
        values = {name: value for name, value in given.items() if name in cls.__dataclass_fields__}
        return cls(**{**values, "plan": Plan.from_json(given["plan"])})


class Hardware(TypedDict):
    """What `decide` is told about where a model will run."""

    target: Target | None
    engine: Engine | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """All that a worker needs, sent once: the calibrated model, the rules, the judge, and the float model's score."""

    prepared: nn.Module
    rules: object
    target: Target | None
    engine: AnyEngine | None
    converting: Any
    judge: Judge
    base: Score
    space: Space = field(default_factory=lambda: Space(recipes=(), units=()))

    @property
    def hardware(self) -> Hardware:
        """What a decision is made for."""
        return {"target": self.target, "engine": "onednn" if self.engine == AUTO else as_engine(self.engine)}

    def rules_of(self, plan: Plan) -> PlanRules:
        """Return the user's rules, with what a plan changes."""
        return PlanRules(self.rules, functools.partial(same_op, OPS), plan)

    def convert(self, plan: Plan) -> tuple[nn.Module, float, float]:
        """Return the model of a plan, and its predicted time and size."""
        decided = decide(self.prepared, rules=self.rules_of(plan), **self.hardware)
        time, size = self.space.cost(runs_of(explain(decided)))
        engine = self.engine if self.engine == AUTO else as_engine(self.engine)
        return convert_fx(decided, self.converting, engine=engine), time, size

    def run_whole(self, plan: Plan) -> Trial:
        """`run` without stopping early."""
        judge = dataclasses.replace(self.judge, early_stop=False)
        return dataclasses.replace(self, judge=judge).run(plan)

    def run(self, plan: Plan) -> Trial:
        """Make and judge the model of a plan. What fxquant cannot make is a trial with an error."""
        start = clock()
        try:
            model, time, size = self.convert(plan)
        except FxQuantError as error:
            return Trial(plan=plan, error=f"{type(error).__name__}: {error}", seconds=clock() - start)
        verdict = self.judge.judge(model, self.base)
        return Trial(plan=plan, time=time, size=size, seconds=clock() - start, **asdict(verdict))


def clock() -> float:
    return time.perf_counter()
