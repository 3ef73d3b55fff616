"""`tuning`: how a model within the tolerance is looked for."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from fxquant.config_file.sections.section import Count, Section, Several, Share

Objective = Literal["performance", "accuracy", "modelsize", "footprint"]


class Strategy(Section):
    name: Literal[
        "basic", "bayesian", "exhaustive", "mse", "random", "automixedprecision", "tpe", "sigopt", "auto",
        "conservative", "mse_v2", "hawq_v2",
    ] = "basic"  # fmt: skip
    sigopt_api_token: str | None = None
    sigopt_project_id: str | None = None
    sigopt_experiment_name: str | None = None
    accuracy_weight: float = 1.0
    latency_weight: float = 1.0


class Criterion(Section):
    """The drop that is allowed: a share of the float model's accuracy, or a number of points of it."""

    relative: Share | None = None
    absolute: Share | None = None
    higher_is_better: bool = True

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.relative is not None and self.absolute is not None:
            raise ValueError("give relative or absolute, not both")
        for name, value in (("relative", self.relative), ("absolute", self.absolute)):
            if value is not None and not 0 <= value < math.inf:  # nan is neither
                raise ValueError(f"{name} is {value}; expected a number from 0 on")
        return self

    @property
    def tolerance(self) -> float:
        if self.absolute is not None:
            return self.absolute
        return 0.01 if self.relative is None else self.relative


class ExitPolicy(Section):
    """`timeout: 0` stops at the first model that passes; other values are seconds."""

    timeout: float = Field(default=0, ge=0)
    max_trials: Count = 100
    performance_only: bool = False


class Workspace(Section):
    path: str | None = None
    resume: str | None = None


class MultiObjectives(Section):
    objective: Several[Objective]
    weight: Several[float] | None = None
    higher_is_better: Several[bool] | None = None


class Diagnosis(Section):
    diagnosis_after_tuning: bool = False
    op_list: Several[str] = Field(default_factory=list)
    iteration_list: Several[int] = Field(default_factory=lambda: [1])
    inspect_type: Literal["all", "activation", "weight"] = "all"
    save_to_disk: bool = True
    save_path: str | None = None


class Tuning(Section):
    strategy: Strategy = Field(default_factory=Strategy)
    accuracy_criterion: Criterion = Field(default_factory=Criterion)
    objective: Objective = "performance"
    multi_objectives: MultiObjectives | None = None
    exit_policy: ExitPolicy = Field(default_factory=ExitPolicy)
    random_seed: int = 1978
    tensorboard: bool = False
    workspace: Workspace = Field(default_factory=Workspace)
    diagnosis: Diagnosis | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_strategy(cls, value: object) -> object:
        """`strategy: basic` is short for `strategy: {name: basic}`."""
        if isinstance(value, dict) and isinstance(value.get("strategy"), str):
            value = {**value, "strategy": {"name": value["strategy"]}}
        return value
