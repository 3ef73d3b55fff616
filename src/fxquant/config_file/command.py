"""What `fxquant quantize` does: functions by name, and a file or the defaults, in; a saved model out."""

from __future__ import annotations

from pathlib import Path

import torch

from fxquant.api import MODEL_FILE, quantize, save
from fxquant.config_file.named import find_named
from fxquant.config_file.quantization import Quantization
from fxquant.config_file.quantized_model import QuantizedModel
from fxquant.config_file.read import read_conf
from fxquant.config_file.template import template
from fxquant.errors import ConfigError
from fxquant.exports import refuse_exported
from fxquant.files import Json, refuse_unwritable, replacing
from fxquant.insight.forecast import Forecast, forecast
from fxquant.tables.explain import explain
from fxquant.targets.file import find_target
from fxquant.tuning.executors import Processes
from fxquant.tuning.judge import read_score


def quantize_by_file(
    conf: Path,
    *,
    model: str,
    output: Path,
    calibration: str | None = None,
    evaluate: str | None = None,
    train: str | None = None,
    engine: str | None = None,
    workers: int = 1,
) -> tuple[QuantizedModel, tuple[str, ...]]:
    """Quantize `model()` as a file says, save it, and give it back with the notes about the file.

    `calibration()` gives batches, `evaluate(model)` a score, `train(model)` trains it in place.
    """
    quantizer = Quantization(conf)
    _place_for(output)
    quantizer.model = find_named(model, "--model")()
    if calibration is not None:
        quantizer.calib_dataloader = find_named(calibration, "--calibration")()
    if evaluate is not None:
        quantizer.eval_func = find_named(evaluate, "--evaluate")
    if train is not None:
        quantizer.q_func = find_named(train, "--train")
    quantizer.engine, quantizer.progress = engine, True
    if workers > 1:
        quantizer.executor = Processes(workers=workers)
    made = quantizer.fit()
    made.save(output)
    return made, quantizer.notes


def quantize_by_default(
    *, model: str, output: Path, calibration: str | None, evaluate: str | None, engine: str | None
) -> Json:
    """Quantize `model()` as `fxquant.quantize` does, save it, and return what there is to tell."""
    if calibration is None:
        raise ConfigError("give --calibration package.module:function, which gives batches.")
    made, score = find_named(model, "--model")(), None if evaluate is None else find_named(evaluate, "--evaluate")
    target = _place_for(output)
    quantized = quantize(made, find_named(calibration, "--calibration")(), engine=engine, progress=True)
    told: Json = {"summary": explain(quantized).summary(), "saved": str(save(quantized, target))}
    if score is not None:
        values = {"float": made.eval(), "quantized": quantized}
        with torch.no_grad():
            told["accuracy"] = {name: float(read_score(score(each)).value) for name, each in values.items()}
    return told


def _place_for(output: Path) -> Path:
    """Return the file for a model, in a directory that is there now. What cannot be written is told before the work."""
    refuse_exported(output, ConfigError)
    target = output if output.suffix else output / MODEL_FILE
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {str(target.parent)!r}: {error.strerror}.") from error
    refuse_unwritable(target, ConfigError)
    return target


def forecast_by_name(model: str, target: str, shapes: list[str]) -> Forecast:
    """Tell where the ops of `model()` will run, for inputs of the given shapes."""
    made, inputs = find_named(model, "--model")(), []
    for text in shapes:
        try:
            inputs.append(torch.zeros([int(size) for size in text.split(",")]))
        except (ValueError, RuntimeError):
            raise ConfigError(f"--shape {text!r}: expected sizes such as 1,3,224,224.") from None
    return forecast(made, find_target(target), tuple(inputs))


def describe(report: Json) -> str:
    """Return one line about a quantized model."""
    accuracy = report.get("accuracy")
    if (summary := report.get("summary")) is not None:
        scores = "" if accuracy is None else f" {accuracy['quantized']:.6g}, float {accuracy['float']:.6g}."
        return f"{summary}.{scores}"
    if accuracy is None:
        return "quantized; its accuracy was not looked at (no --evaluate, and no metric in the file)."
    verdict = "within the tolerance" if accuracy["passed"] else "NOT within the tolerance"
    count = len(report.get("trials", ()))
    trials = f" after {count} trial{'s' * (count != 1)}" if count else ""
    return f"{accuracy['quantized']:.6g}, float {accuracy['float']:.6g}: {verdict}{trials}."


def write_template(path: Path, approach: str) -> None:
    """Write a commented file; one that is there is left alone."""
    if path.exists():
        raise ConfigError(f"{str(path)!r} is there already. Give another name, or remove it.")
    text = template(approach=approach)
    with replacing(path, ConfigError) as part:
        part.write_text(text)
    read_conf(path)
