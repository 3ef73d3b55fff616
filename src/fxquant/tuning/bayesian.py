"""Bayesian search with Optuna: a recipe, and for each of the ops that cost most accuracy whether it is lifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxquant.config.qconfig import Lift
from fxquant.errors import ConfigError
from fxquant.tuning.plan import Plan
from fxquant.tuning.space import Key
from fxquant.tuning.strategies import Generation, Search, Setting
from fxquant.tuning.trial import Trial

if TYPE_CHECKING:
    import optuna

OPS_SEARCHED = 16  # more choices than that, a few dozen trials cannot tell apart
AT_ONCE = 4


def bayesian(given: Setting) -> Search:
    """Optuna's TPE sampler, four plans at a time; it minimizes the cost, plus what a drop is over the limit."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("strategy 'bayesian' needs Optuna. Run: pip install 'fxquant[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranked = list(given.by_sensitivity(given.space.recipes[0]))[:OPS_SEARCHED]
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=given.seed, constant_liar=True))
    first = {"recipe": 0, **{f"op{i}": "int8" for i in range(len(ranked))}}
    study.enqueue_trial(first)
    size = 1
    while True:
        asked = [study.ask() for _ in range(size)]
        trials = yield Generation(tuple(_plan(each, given, ranked) for each in asked))
        for each, trial in zip(asked, trials, strict=False):
            study.tell(each, _loss(trial))
        size = AT_ONCE


def _plan(asked: optuna.Trial, given: Setting, ranked: list[Key]) -> Plan:
    recipe: Plan = given.space.recipes[asked.suggest_categorical("recipe", list(range(len(given.space.recipes))))]
    lifted: dict[Key, Lift] = {}
    for index, key in enumerate(ranked):
        choice = asked.suggest_categorical(f"op{index}", ["int8", *given.lifts])
        if choice != "int8":
            lifted[key] = choice
    return recipe.lifted(lifted)


def _loss(trial: Trial) -> float:
    """A model outside of the tolerance costs more than any inside."""
    if trial.passed:
        return trial.time + trial.size
    return 3.0 + min(max(trial.drop, 0.0), 1e6)
