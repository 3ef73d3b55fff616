"""Commands that make a quantized model, or say what would become of one."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fxquant.cli.options import (
    OUT_OF_TOLERANCE,
    AsJson,
    Debug,
    EngineName,
    NeededData,
    NeededFloat,
    Workers,
    batches,
    float_model,
    one_line,
    print_json,
)

Evaluate = Annotated[str | None, typer.Option(help="package.module:function from a model to its score.")]


def quantize(
    model: NeededFloat,
    conf: Annotated[Path | None, typer.Argument(help="A conf.yaml; without one, the defaults.")] = None,
    calibration: Annotated[str | None, typer.Option(help="package.module:function that gives batches.")] = None,
    evaluate: Evaluate = None,
    train: Annotated[str | None, typer.Option(help="package.module:function that trains a model.")] = None,
    output: Annotated[Path, typer.Option(help="Directory, or file ending in .fq, to save to.")] = Path("quantized"),
    engine: EngineName = None,
    workers: Workers = 1,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Quantize a model, by default or as a conf.yaml says, and save it.

    The exit code is 3 if it is not within the tolerance that the file gives.
    """
    with one_line(debug):
        from fxquant.config_file.command import describe, quantize_by_default, quantize_by_file
        from fxquant.errors import ConfigError

        if conf is None:
            if train is not None or workers > 1:
                raise ConfigError("--train and --workers go with a conf.yaml: fxquant init writes one.")
            told = quantize_by_default(
                model=model, output=output, calibration=calibration, evaluate=evaluate, engine=engine
            )
        else:
            made, _ = quantize_by_file(
                conf,
                model=model,
                output=output,
                calibration=calibration,
                evaluate=evaluate,
                train=train,
                engine=engine,
                workers=workers,
            )
            told = {**made.report, "saved": str(output)}
    if as_json:
        print_json(told)
    else:
        typer.echo(f"{describe(told)} Saved to {told['saved']}")
    accuracy = told.get("accuracy")
    if accuracy is not None and not accuracy.get("passed", True):
        raise typer.Exit(code=OUT_OF_TOLERANCE)


class Objective(str, Enum):
    latency = "latency"
    size = "size"
    accuracy = "accuracy"


class Strategy(str, Enum):
    basic = "basic"
    mse = "mse"
    bayesian = "bayesian"
    random = "random"
    exhaustive = "exhaustive"


def tune(
    model: NeededFloat,
    data: NeededData,
    evaluate: Annotated[str, typer.Option(help="package.module:function from a model to its score.")],
    output: Annotated[Path, typer.Option(help="File ending in .fq to save to.")] = Path("tuned.fq"),
    tolerance: Annotated[float, typer.Option(min=0.0, help="Share of the float score that may be lost.")] = 0.01,
    objective: Annotated[Objective, typer.Option(help="What is to be best.")] = Objective.latency,
    strategy: Annotated[Strategy, typer.Option(help="How plans are chosen.")] = Strategy.basic,
    max_trials: Annotated[int, typer.Option(min=1, help="Stop after so many.")] = 100,
    timeout: Annotated[float | None, typer.Option(help="Seconds; 0 stops at the first that passes.")] = None,
    workspace: Annotated[Path | None, typer.Option(help="Directory for trials, to go on after a stop.")] = None,
    workers: Workers = 1,
    engine: EngineName = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find the best int8 model within a tolerance of your own score. The exit code is 3 if there is none."""
    with one_line(debug):
        from fxquant.api import save
        from fxquant.config_file.named import find_named
        from fxquant.errors import ConfigError
        from fxquant.exports import refuse_exported
        from fxquant.files import refuse_unwritable
        from fxquant.tuning.executors import Processes
        from fxquant.tuning.tune import tune as run

        score = find_named(evaluate, "--evaluate")
        refuse_exported(output, ConfigError)
        refuse_unwritable(output, ConfigError)
        found = run(
            float_model(model),
            batches(data),
            score,
            tolerance=tolerance,
            objective=objective.value,
            strategy=strategy.value,
            max_trials=max_trials,
            timeout=timeout,
            workspace=workspace,
            executor=Processes(workers=workers) if workers > 1 else None,
            engine=engine,
            progress=True,
        )
        save(found.model, output)
    if as_json:
        trials = [trial.to_json() for trial in found.trials]
        passed = {"passed": found.passed, "float": found.base, "limit": found.limit, "saved": str(output)}
        print_json({**passed, "best": found.best.to_json(), "trials": trials, "stopped": found.stopped})
    else:
        typer.echo(f"{found}\nSaved to {output}")
    if not found.passed:
        raise typer.Exit(code=OUT_OF_TOLERANCE)


def forecast(
    model: NeededFloat,
    target: Annotated[str, typer.Option(help="A known target, or a YAML file.")],
    shape: Annotated[list[str], typer.Option(help="Shape of an input, such as 1,3,224,224; once for each input.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say which ops of a model a target will run, and which rule refuses the others, before any calibration."""
    with one_line(debug):
        from fxquant.config_file.command import forecast_by_name

        found = forecast_by_name(model, target, shape)
    if as_json:
        typer.echo(found.to_json())
    else:
        typer.echo(str(found))
