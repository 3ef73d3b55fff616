"""`tune`: the fastest or smallest model whose score on the user's own metric is within a tolerance.

prepare and calibrate once  ->  trials: decide by a plan, convert, evaluate  ->  the best that passes
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, cast, get_args

from torch import nn
from typing_extensions import Unpack

from fxquant.algorithms import BALANCED, Algorithm
from fxquant.arguments import Converting, Preparing, read_examples, spell_out, take_converting
from fxquant.capture.canonical.as_plain import as_plain
from fxquant.capture.run_untraced import evaluating
from fxquant.config.forms import closest
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.rules import Rules
from fxquant.config.target import Target
from fxquant.engines.choose import AUTO, check_engine
from fxquant.engines.table import as_engine
from fxquant.errors import ConfigError
from fxquant.files import Json
from fxquant.flows.calibrate import as_example, calibrate, check_data
from fxquant.flows.decide import decide
from fxquant.progress import steps
from fxquant.quantize_fx import convert_fx, prepare_fx
from fxquant.tables.explain import explain
from fxquant.targets import by_name
from fxquant.tuning import ranking
from fxquant.tuning.bayesian import bayesian
from fxquant.tuning.executors import Executor, InProcess, Processes
from fxquant.tuning.journal import Journal, fingerprint
from fxquant.tuning.judge import Judge, Score
from fxquant.tuning.plan import Plan, watching_all
from fxquant.tuning.ray_executor import Ray
from fxquant.tuning.result import TuneResult
from fxquant.tuning.search import Limits, Loop, confirm
from fxquant.tuning.space import Space, find_units
from fxquant.tuning.strategies import Search, Setting, at_random, basic, exhaustive, mse
from fxquant.tuning.trial import AnyEngine, Trial, Work
from fxquant.tuning.watch_products import watch_products

Criterion = Literal["relative", "absolute"]
Objective = Literal["latency", "size", "accuracy"]
StrategyName = Literal["basic", "bayesian", "random", "exhaustive", "mse"]

STRATEGIES: dict[str, Callable[[Setting], Search]] = {
    "basic": basic,
    "bayesian": bayesian,
    "random": at_random,
    "exhaustive": exhaustive,
    "mse": mse,
}
LOOKED_AT = 4  # batches that the ops are ranked by


class Calibrating(Preparing, total=False):
    """What a model is prepared and calibrated with."""

    example_inputs: object
    example_kwargs: Mapping[str, object] | None
    num_batches: int | None
    algorithms: Iterable[Algorithm]


class Further(Calibrating, Converting, total=False):
    """What `tune` takes for others: calibration, `prepare_fx` and `convert_fx`."""


def _calibrated(
    model: nn.Module,
    data: Iterable[object] | None,
    journal: Journal,
    rules: object,
    target: Target | str | None,
    *,
    progress: bool,
    example_inputs: object = None,
    example_kwargs: Mapping[str, object] | None = None,
    num_batches: int | None = None,
    algorithms: Iterable[Algorithm] = BALANCED,
    **preparing: Unpack[Preparing],
) -> tuple[nn.Module, list[object]]:
    """Return a model that has seen all that a plan may ask for, and a few batches.

    Nothing is run where the workspace knows what calibration gives.
    """
    batches: list[object] = []
    if data is not None:
        data, batches = _looked_at(data)
    args, kwargs = _example(model, batches, example_inputs, example_kwargs)
    prepared = prepare_fx(
        model, watching_all(rules), args, example_kwargs=kwargs, target=target, algorithms=algorithms, **preparing
    )
    watch_products(prepared)
    if data is not None and not journal.load_statistics(prepared):
        calibrate(prepared, data, num_batches=num_batches, progress=progress)
        journal.save_statistics(prepared)
    return prepared, batches or [_as_batch(args, kwargs)]


@spell_out(Further, _calibrated, prepare_fx, convert_fx)
def tune(
    model: nn.Module,
    calibration_data: Iterable[object] | None,
    evaluate: Callable[[nn.Module], object],
    *,
    tolerance: float = 0.01,
    criterion: Criterion = "relative",
    objective: Objective = "latency",
    strategy: StrategyName = "basic",
    max_trials: int = 100,
    timeout: float | None = None,
    workspace: str | Path | None = None,
    executor: Executor | Literal["processes", "ray"] | None = None,
    higher_is_better: bool = True,
    confidence: float = 0.95,
    seed: int = 0,
    recipes: Sequence[Plan] | None = None,
    qconfig_mapping: object = None,
    target: Target | str | None = None,
    engine: AnyEngine | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    progress: bool = False,
    **further: Unpack[Further],
) -> TuneResult:
    """Find the fastest (or smallest, or most accurate) int8 model within a tolerance of the float model's score.

    `evaluate(model)` gives a number, or results by sample: a 1-D tensor, or parts of one that it yields until it is
    clear, to a share of `confidence`, how it ends. `tolerance` is a share of the float model's score, or with
    `criterion` "absolute" a difference; `higher_is_better=False` is for losses. If nothing passes, the most accurate
    model is returned, with a warning. Of those that pass, the result is best in its `objective`: "latency", "size" or
    "accuracy". `strategy` chooses up to `max_trials` plans, from `seed`, after the given `recipes`, and ends after
    `timeout` seconds (0: with the first that passes). A stopped search goes on from its `workspace`; `executor` runs
    trials in processes or on Ray; `on_trial` gets each trial; `progress` shows bars. The search starts from
    `qconfig_mapping`, for `target` and `engine`. `algorithms` and the rest are as for `quantize` and `prepare_fx`.

    Example:
        >>> found = fq.tune(model, loader, lambda net: float(net(loader[0]).mean()), timeout=0)
        >>> found.passed
        True
    """
    converting = take_converting(further, tune)
    _check(evaluate, tolerance, criterion, objective, strategy, max_trials, timeout, confidence, engine)
    runs = _executor(executor)
    model = as_plain(model, "tune", training=False)
    rules = qconfig_mapping if qconfig_mapping is not None else _default_rules(target)
    relative = criterion == "relative"
    judge = Judge(evaluate, tolerance, relative=relative, higher_is_better=higher_is_better, confidence=confidence)
    journal = Journal(workspace, _about(model, judge, engine, target))
    with evaluating(model):
        given = cast(Calibrating, further)
        prepared, batches = _calibrated(model, calibration_data, journal, rules, target, progress=progress, **given)
        base = _base(journal, judge, model)
    chip = by_name(target) if target is not None else None
    work = Work(
        prepared=prepared, rules=rules, target=chip, engine=engine, converting=converting, judge=judge, base=base
    )
    work = _with_space(work, recipes or default_recipes(rules, objective))
    search = STRATEGIES[strategy](_setting(work, batches, objective, seed))
    limits = Limits(max_trials=max_trials, timeout=timeout)
    return _search(search, work, journal, limits, runs, on_trial, objective, progress=progress)


def _check(
    evaluate: object,
    tolerance: float,
    criterion: str,
    objective: str,
    strategy: str,
    max_trials: int,
    timeout: float | None,
    confidence: float,
    engine: AnyEngine | None,
) -> None:
    check_engine(engine)
    if not callable(evaluate):
        raise ConfigError(f"tune(evaluate={evaluate!r}): give a function from a model to its score.")
    for name, value, known in (
        ("criterion", criterion, get_args(Criterion)),
        ("objective", objective, get_args(Objective)),
        ("strategy", strategy, tuple(STRATEGIES)),
    ):
        if value not in known:
            raise ConfigError(
                f"tune({name}={value!r}): expected one of {', '.join(known)}.{closest(str(value), known)}"
            )
    numbers = {"tolerance": tolerance, "max_trials": max_trials, "timeout": timeout or 0, "confidence": confidence}
    for name, number in numbers.items():
        if not isinstance(number, (int, float)):
            raise ConfigError(f"tune({name}={number!r}): expected a number.")
    if tolerance < 0 or max_trials < 1 or (timeout is not None and timeout < 0):
        raise ConfigError(
            f"tune(tolerance={tolerance}, max_trials={max_trials}, timeout={timeout}): expected a tolerance and a "
            "timeout from 0 on, and at least one trial."
        )
    if not 0 < confidence < 1:
        raise ConfigError(f"tune(confidence={confidence}): expected a number between 0 and 1.")


def _about(model: nn.Module, judge: Judge, engine: AnyEngine | None, target: Target | str | None) -> Json:
    """Return what makes a search another one, for its workspace."""
    return {
        "model": fingerprint(model),
        "engine": AUTO if engine == AUTO else as_engine(engine).name,
        "target": str(getattr(target, "name", target)),
        "criterion": "relative" if judge.relative else "absolute",
        "tolerance": judge.tolerance,
        "confidence": judge.confidence,
        "higher": judge.higher_is_better,
    }


def _default_rules(target: Target | str | None) -> object:
    return QConfigMapping().set_global(by_name(target).qconfig)


def _looked_at(data: Iterable[object]) -> tuple[Iterable[object], list[object]]:
    """Return the data, and its first batches; a one-shot iterator is put together again."""
    check_data(data)
    iterator = iter(data)
    batches = list(itertools.islice(iterator, LOOKED_AT))
    return (itertools.chain(batches, iterator) if iterator is data else data), batches


def _example(
    model: nn.Module, batches: list[object], inputs: object, kwargs: Mapping[str, object] | None
) -> tuple[object, Mapping[str, object] | None]:
    """Return the example inputs as they are given, or the first batch."""
    if inputs is not None or kwargs is not None:
        return (inputs if inputs is not None else ()), kwargs
    if not batches:
        raise ConfigError("tune needs calibration data, or example_inputs for rules that need none.")
    return as_example(batches[0], model)


def _as_batch(example_inputs: object, example_kwargs: Mapping[str, object] | None) -> object:
    args, kwargs = read_examples(example_inputs, example_kwargs)
    return args or kwargs


def _setting(work: Work, batches: list[object], objective: Objective, seed: int) -> Setting:
    """Return what a strategy may look at: the space, and the ops ranked on a few batches."""
    return Setting(
        space=work.space,
        by_sensitivity=functools.partial(ranking.by_sensitivity, work, batches),
        by_mse=functools.partial(ranking.by_mse, work, batches),
        lifts=("weight_only", "float") if objective == "size" else ("float",),
        seed=seed,
    )


def _search(
    search: Search,
    work: Work,
    journal: Journal,
    limits: Limits,
    executor: Executor,
    on_trial: Callable[[Trial], None] | None,
    objective: Objective,
    *,
    progress: bool,
) -> TuneResult:
    """Run the trials that a strategy asks for, and return what came of them."""
    with closing(executor) as runs, steps("tuning", limits.max_trials, wanted=progress) as step:
        runs.start(work)
        trials, stopped = Loop(runs, journal, limits, functools.partial(_tell, step, on_trial)).run(search)
    return _result(work, journal, trials, stopped, objective)


def _tell(step: Callable[[str], None], on_trial: Callable[[Trial], None] | None, trial: Trial) -> None:
    step(f"drop {trial.drop:.3g}, time {trial.time:.2f}")
    if on_trial is not None:
        on_trial(trial)


def _base(journal: Journal, judge: Judge, model: nn.Module) -> Score:
    """Return the float model's score, measured once for a workspace."""
    line = journal.find("base")
    if line is not None:
        return Score(value=line["value"], samples=None if line["samples"] is None else tuple(line["samples"]))
    base = judge.measure(model)
    journal.add({"kind": "base", "value": base.value, "samples": None if base.samples is None else list(base.samples)})
    return base


def _with_space(work: Work, recipes: Iterable[Plan]) -> Work:
    """With recipes, and the ops that the first of them quantizes."""
    first, *others = recipes
    decided = decide(work.prepared, rules=work.rules_of(first), **work.hardware)
    units = find_units(work.prepared, explain(decided))
    return dataclasses.replace(work, space=Space(recipes=(first, *others), units=units))


def default_recipes(rules: object, objective: str) -> tuple[Plan, ...]:
    """Return the rules as they are; then other ways to find ranges or, where size counts, activations in float."""
    asked = [q for q in Rules(rules, lambda one, other: one is other).mapping.qconfigs() if q is not None]
    if asked and not any(q.activation is not None and not q.activation.dynamic for q in asked):
        return (Plan(),)
    if objective == "size":
        return (Plan(), Plan(mode="weight_only"))
    return (Plan(), *(Plan(activation=(("observer", name),)) for name in ("minmax", "percentile")))


def _executor(given: object) -> Executor:
    if given is None:
        return InProcess()
    if isinstance(given, str):
        known = {"processes": Processes, "ray": Ray}
        if given not in known:
            raise ConfigError(f"tune(executor={given!r}): expected one of {', '.join(known)}.{closest(given, known)}")
        made: Executor = known[given]()
        return made
    if not all(callable(getattr(given, name, None)) for name in ("start", "run", "close")):
        raise ConfigError(
            f"tune(executor=...): {type(given).__name__} has no start, run and close. Use Processes or Ray."
        )
    return cast(Executor, given)


def _result(work: Work, journal: Journal, trials: list[Trial], stopped: str, objective: str) -> TuneResult:
    """Return the best trial that passes, also with the whole evaluation; else the most accurate one."""
    passing = sorted((trial for trial in trials if trial.passed), key=lambda trial: _rank(trial, objective))
    best = None
    for trial in passing:
        whole = confirm(work, journal, trial)
        if whole.passed:
            best = whole
            break
    made = [trial for trial in trials if not trial.error]
    if not made:
        raise ConfigError(f"none of the {len(trials)} trials could be made. The first: {trials[0].error}")
    chosen = best or min(made, key=lambda trial: (trial.drop, trial.time))
    model, _, _ = work.convert(chosen.plan)
    result = TuneResult(
        model=model,
        best=chosen,
        base=work.base.value,
        limit=work.judge.limit(work.base),
        passed=best is not None,
        trials=tuple(trials),
        stopped=stopped,
    )
    if not result.passed:
        warnings.warn(f"tune found no model within the tolerance. {result.summary}", stacklevel=3)
    return result


def _rank(trial: Trial, objective: str) -> tuple[float, ...]:
    if objective == "accuracy":
        return (trial.drop, trial.time)
    return (trial.time, trial.size, trial.drop) if objective == "latency" else (trial.size, trial.time, trial.drop)
