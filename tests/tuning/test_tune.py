"""`tune` finds what int8 breaks, keeps what it did, and gives the same result however it runs."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fq
from tuning_models import Agreement, Share, batches, broken, whole

TESTS = Path(__file__).parents[1]


tune = functools.partial(fq.tune, engine="onednn")  # it makes no code for each trial


def lifted(result: fq.TuneResult) -> list[str]:
    return [path for path, _, _ in result.best.plan.lift]


def test_a_model_that_int8_does_not_hurt_takes_one_trial() -> None:
    model = whole()
    result = tune(model, batches(), Agreement(model), tolerance=0.1)
    assert result.passed and len(result.trials) == 1 and result.best.plan == fq.Plan()
    assert {row.status for row in fq.explain(result.model) if row.is_weighted} == {"int8"}


@pytest.mark.broad
@pytest.mark.parametrize("strategy", ["basic", "mse"])
@pytest.mark.parametrize("evaluation", [Agreement, Share])
def test_the_broken_layer_is_found_in_five_trials(strategy: Any, evaluation: Any) -> None:
    model = broken()
    result = tune(
        model,
        batches(),
        evaluation(model),
        target="x86-vnni",
        tolerance=0.05,
        strategy=strategy,
        timeout=0,
        max_trials=5,
    )
    assert result.passed and lifted(result) == ["b"] and len(result.trials) <= 5
    assert not result.trials[0].passed
    found = {row.path: row.status for row in fq.explain(result.model) if row.is_weighted}
    assert found == {"a": "int8", "b": "float", "c": "int8", "d": "int8"}


@pytest.mark.broad
@pytest.mark.parametrize("strategy", ["bayesian", "random", "exhaustive"])
def test_other_strategies_find_it_too_and_repeat_themselves(strategy: Any) -> None:
    if strategy == "bayesian":
        pytest.importorskip("optuna", reason="fxquant[tune] is not installed")
    model = broken()
    runs = [
        tune(model, batches(), Share(model), target="x86-vnni", tolerance=0.05, strategy=strategy, max_trials=9, seed=2)
        for _ in range(2)
    ]
    assert runs[0].passed and "b" in lifted(runs[0])
    assert [t.plan for t in runs[0].trials] == [t.plan for t in runs[1].trials]
    assert runs[0].best.plan == runs[1].best.plan


def test_for_size_weights_stay_int8_where_they_can() -> None:
    model = broken()
    result = tune(model, batches(), Share(model), tolerance=0.05, objective="size")
    assert result.passed and lifted(result) == ["b"]  # the small weights beside large ones are broken, too
    assert result.trials[1].plan.mode == "weight_only" and result.trials[1].size == 0.25 < result.best.size < 0.6


def test_without_data_the_example_is_what_ops_are_ranked_by() -> None:
    rules = {"": fq.QConfig(weight=fq.Spec(granularity="per_channel", observer="minmax"))}
    for example in ({"example_inputs": batches()[0]}, {"example_kwargs": {"x": batches()[0]}}):
        found = fq.tune(
            whole(), None, Share(whole()), qconfig_mapping=rules, tolerance=0.05, engine="reference", **example
        )  # type: ignore[arg-type]
        assert found.passed


def test_nothing_within_the_tolerance_gives_the_best_and_says_so() -> None:
    model = broken()
    with pytest.warns(UserWarning, match="NOT within the tolerance"):
        result = tune(model, batches(), Share(model), tolerance=0.0, max_trials=2)
    assert not result.passed and result.best.drop == min(trial.drop for trial in result.trials)
    assert "NOT within" in str(result)


def test_a_workspace_goes_on_without_repeating_anything(tmp_path: Path) -> None:
    model, calls = broken(), []

    class Counting(Share):
        def __call__(self, given: Any) -> float:
            calls.append(given)
            return super().__call__(given)

    class Once:
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(batches())

    data = Once()
    with pytest.warns(UserWarning, match="NOT within"):
        first = tune(model, data, Counting(model), tolerance=0.05, workspace=tmp_path, max_trials=2)
    assert len(calls) == 3
    looked, data.passes = data.passes, 0
    second = tune(model, data, Counting(model), tolerance=0.05, workspace=tmp_path)
    assert len(calls) == 1 + len(second.trials)
    assert data.passes == looked - 1  # no second calibration
    assert second.trials[:2] == first.trials
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", "base", *["trial"] * len(second.trials)]
    with pytest.raises(fq.ConfigError, match="tolerance differs"):
        tune(model, data, Counting(model), tolerance=0.01, workspace=tmp_path)
    with pytest.raises(fq.ConfigError, match="model differs"):
        tune(whole(), data, Counting(model), tolerance=0.05, workspace=tmp_path)


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    model = broken()
    first = tune(model, batches(), Share(model), tolerance=0.05, workspace=tmp_path)
    path = tmp_path / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-25])
    second = tune(model, batches(), Share(model), tolerance=0.05, workspace=tmp_path)
    assert [trial.plan for trial in second.trials] == [trial.plan for trial in first.trials]
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(fq.ConfigError, match="damaged"):
        tune(model, batches(), Share(model), tolerance=0.05, workspace=tmp_path)


KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
from tuning_models import Share, batches, broken
import fxquant as fq
model = broken()
class Slow(Share):
    def __call__(self, given):
        print("evaluated", flush=True)
        return super().__call__(given)
def pause(trial):
    print("trial", flush=True)
    if {stop}:
        time.sleep(60)
fq.tune(model, batches(), Slow(model), tolerance=0.05, workspace={workspace!r}, on_trial=pause, engine="onednn")
"""


def test_a_killed_run_loses_no_finished_trial(tmp_path: Path) -> None:
    def start(stop: bool) -> subprocess.Popen[str]:
        code = KILLED.format(tests=str(TESTS), workspace=str(tmp_path), stop=stop)
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))

    process = start(stop=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "trial\n":
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = (tmp_path / "trials.jsonl").read_text().count('"kind": "trial"')
    assert done == 1
    output, _ = start(stop=False).communicate(timeout=120)
    trials = output.count("trial\n")
    assert output.count("evaluated\n") == trials - done  # nor is the float model evaluated again


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"strategy": "basik"}, "Closest: 'basic'"),
        ({"criterion": "both"}, "relative, absolute"),
        ({"objective": "speed"}, "latency, size"),
        ({"max_trials": 0}, "at least one trial"),
        ({"executor": "thread"}, "processes, ray"),
        ({"executor": 3}, "start, run and close"),
        ({"confidence": 2}, "between 0 and 1"),
        ({"tolerance": "1%"}, "tolerance='1%'.: expected a number"),
        ({"max_trials": "3"}, "expected a number"),
        ({"timeout": "soon"}, "expected a number"),
        ({"workspace": 3}, "the path of a directory"),
    ],
)
def test_mistakes_say_what_to_do(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(fq.ConfigError, match=says):
        tune(whole(), batches(), lambda model: 1.0, **arguments)


def test_an_evaluation_is_a_function() -> None:
    with pytest.raises(fq.ConfigError, match="give a function from a model to its score"):
        tune(whole(), batches(), "accuracy")  # type: ignore[arg-type]


@pytest.mark.parametrize("result", ["good", {}, float("nan"), [], torch.zeros(2, 2)])
def test_an_evaluation_that_gives_no_score_is_an_error(result: Any) -> None:
    with pytest.raises(fq.ConfigError, match="evaluate gave"):
        tune(whole(), batches(), lambda model: result)


def test_a_timeout_ends_a_search() -> None:
    model = whole()

    def slow(given: Any) -> float:
        time.sleep(0.05)
        return 1.0 if given is model else 0.0

    with pytest.warns(UserWarning, match="NOT within"):
        result = tune(model, batches(), slow, timeout=0.01)
    assert len(result.trials) == 1 and "0.01 seconds" in result.stopped
