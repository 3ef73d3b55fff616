"""What `fxquant demo` does: quantize, save, load, and write a report, whose numbers it prints."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fxquant as fq
from fxquant.demo import digits as digits_net
from fxquant.demo import pictures
from fxquant.engines.table import available_engines
from fxquant.errors import ConfigError
from fxquant.files import Json

MEASURED = 41  # pictures, of which the report looks at the first REPORTED
REPORTED = 13
CALIBRATION = 24
BATCH = 4  # tensors of 8 pictures are mapped anew by malloc for each op, which costs 40% more CPU time


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A float model, batches to calibrate with, others to measure with, and its score if there are labels."""

    name: str
    model: nn.Module
    calibration: list[Any]
    held_out: list[Any]
    evaluate: Callable[[nn.Module], float] | None


def run(*, output: Path, digits: bool = False, seed: int = 0, quiet: bool = False, show: bool = False) -> Json:
    """Quantize a model, write `model.fq` and `report.html` into a directory, print and return the numbers."""
    console = Console(quiet=quiet)
    start = time.perf_counter()
    case = _digits(seed, console) if digits else _pictures(seed, console)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {str(output)!r}: {error.strerror}.") from None

    console.print("Quantizing ...")
    began = time.perf_counter()
    quantized = fq.quantize(case.model, case.calibration, progress=True)
    saved = fq.save(quantized, output / "model.fq")
    summary = fq.explain(quantized).summary()
    console.print(f"  {time.perf_counter() - began:.1f} s, {summary}", highlight=False, soft_wrap=True)

    console.print("Measuring both, on every engine here ...")
    made = fq.report(
        case.model,
        fq.load(saved),
        _first(case.held_out),
        output / "report.html",
        evaluate=case.evaluate,
        most=4,
        engines=[engine.name for engine in available_engines()],
        seconds=1.0,
        title=case.name,
        progress=True,
    )
    console.print(_table(case, made.data))
    same = _agreement(case, quantized)
    for line in _words(made.data, same):
        console.print(line, highlight=False)
    console.print(f"The model: {saved}\nThe report: {made.path}\n{time.perf_counter() - start:.0f} s in all.")
    if show and not quiet and sys.stdout.isatty():
        _open(made.path)
    return {
        "model": str(saved),
        "report": str(made.path),
        "agreement": same,
        "score": made.data["score"],
        "output_sqnr": made.data["compare"]["sqnr"],
        "speed": made.data["speed"],
    }


def _first(batches: list[Tensor]) -> list[Tensor]:
    """Return the batches that have the first REPORTED samples."""
    count, found = 0, []
    for batch in batches:
        if count < REPORTED:
            found.append(batch)
            count += len(batch)
    return found


@torch.inference_mode()
def _agreement(case: Case, quantized: nn.Module) -> dict[str, int]:
    same = [case.model(x).argmax(1) == quantized(x).argmax(1) for x in case.held_out]
    return {"same": int(sum(each.sum() for each in same)), "every": sum(len(each) for each in same)}


def _pictures(seed: int, console: Console) -> Case:
    model = pictures.classifier()
    console.print(f"EfficientNet-Lite0, {_weights(model)} weights of ImageNet, on crops of photographs.")
    calibration = pictures.crops("left", CALIBRATION, seed)
    held_out = pictures.crops("right", MEASURED, seed)
    # one picture first: it is what engines are timed with
    return Case(
        name="EfficientNet-Lite0",
        model=model,
        calibration=list(calibration.split(BATCH)),
        held_out=[held_out[:1], *held_out[1:].split(BATCH)],
        evaluate=None,
    )


def _digits(seed: int, console: Console) -> Case:
    try:
        train_x, train_y, test_x, test_y = digits_net.load_digits(seed)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the digits need {error.name}. Run: pip install 'fxquant[demo]'") from None
    torch.manual_seed(seed)
    model = digits_net.DigitsNet()
    console.print(f"Training {_weights(model)} weights on {len(train_x)} digits ...")
    digits_net.train(model, train_x, train_y, epochs=10, seed=seed)
    held_out = digits_net.batches(test_x, test_y)

    def accuracy(net: nn.Module) -> float:
        return sum(int((net(x).argmax(1) == y).sum()) for x, y in held_out) / len(test_y)

    calibration = digits_net.batches(train_x, train_y)[:8]
    return Case(
        name="Digits", model=model, calibration=calibration, held_out=[x for x, _ in held_out], evaluate=accuracy
    )


def _weights(model: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def _table(case: Case, data: Json) -> Table:
    first = case.held_out[0]
    batch = len(first) if isinstance(first, Tensor) else 1
    threads = data["speed"]["threads"]
    table = Table(title=f"a batch of {batch}, {threads} thread{'s' * (threads != 1)}; medians, engines in turn")
    table.add_column("")
    for column in ("ms", "against float", "size, MiB"):
        table.add_column(column, justify="right")
    for row in data["speed"]["rows"]:
        name = row["name"] if row["name"] == "float" else f"int8, {row['name']}"
        table.add_row(name, f"{row['ms']:.2f}", f"{row['speedup']:.2f}x", f"{row['size']:.2f}")
    return table


def _words(data: Json, same: dict[str, int]) -> list[str]:
    lines = []
    if data["score"] is not None:
        lines.append(f"Accuracy: {data['score']['int8']:.2%} in int8, {data['score']['float']:.2%} in float.")
    lines.append(f"Same top answer as float for {same['same']} of {same['every']} held-out pictures.")
    lines.append(f"Outputs: {data['compare']['sqnr']:.1f} dB from the float model's.")
    busy = data["speed"]["busy"]
    return [*lines, *([f"{busy[0].upper()}{busy[1:]}"] if busy else [])]


def _open(path: Path) -> None:
    """Show a page, where there is a browser with windows."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    if type(browser) is not webbrowser.GenericBrowser:  # that one runs in the terminal
        browser.open(path.resolve().as_uri())
