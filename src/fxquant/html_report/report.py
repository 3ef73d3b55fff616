"""`report`: a float model and its quantized one measured side by side, as one HTML file."""

from __future__ import annotations

import html
import itertools
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote

import torch
from torch import nn

from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.errors import CalibrationError, ConfigError, FxQuantError
from fxquant.files import Json, refuse_unwritable, replacing
from fxquant.flows.calibrate import check_data
from fxquant.graph.region import regions, stage_of, user_class
from fxquant.graph.region_parts import Stage
from fxquant.html_report.gather import (
    agreement,
    gather_account,
    gather_fixes,
    gather_graphs,
    gather_score,
    gather_speed,
    gather_weights,
)
from fxquant.html_report.page import render
from fxquant.insight.compare import compare_sides
from fxquant.insight.fixes import Tried, try_fixes
from fxquant.insight.sides import Sides, set_side_by_side
from fxquant.progress import steps
from fxquant.quantize_fx import convert_fx
from fxquant.tables.present import finite

_PACKAGES = ("fxquant", "torch", "numpy", "llvmlite", "onnxruntime", "openvino")
_TRIED_ON = 2  # batches: each kernel that is tried runs them


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Report:
    """A written report: where it is, and all numbers that are in it."""

    path: Path
    data: Json

    def to_dict(self) -> Json:
        """Return all that the page shows, plain."""
        return self.data

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.data, indent=1)

    def summary(self) -> str:
        """Return a few lines."""
        return "\n".join([*self.data["headlines"], f"written to {self.path}"])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        """The same: a prompt shows what a call gives by its repr."""
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.data["headlines"])
        name = html.escape(str(self.path))
        return f'<ul>{lines}</ul><a href="{quote(str(self.path))}" target="_blank">{name}</a>'


def report(
    float_model: nn.Module,
    quantized: nn.Module,
    data: Iterable[object],
    path: str | os.PathLike[str] = "report.html",
    *,
    evaluate: Callable[[nn.Module], object] | None = None,
    num_batches: int = 8,
    most: int = 16,
    engines: Iterable[str] | None = None,
    seconds: float = 1.0,
    title: str | None = None,
    concrete_args: Mapping[str, object] | None = None,
    progress: bool = False,
) -> Report:
    """Measure both models on `data` and write one HTML file that shows what happened; it opens without a network.

    It has both graphs side by side, the decision, the error and the values of every tensor, where the error enters,
    what each engine and kernel costs, what stayed in float and why, and what would help, tried. `evaluate(model)` adds
    a score of your own: a number, or results by sample. `num_batches` of the data are used; `most` kernels are tried
    alone in float (0: none). `engines` are timed for `seconds` each (0: none): without a list, that of the model and
    those that run it without an export. `title` stands above, by default the name of the model's class; `progress`
    shows a bar, in a terminal. Both models stay as they are.

    Example:
        >>> import torch, fxquant as fq
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
        >>> data = [torch.randn(2, 3, 16, 16)]
        >>> made = fq.report(model, fq.quantize(model, data), data, "net.html", seconds=0)
        >>> made.path.name
        'net.html'
    """
    check_data(data)
    refuse_unwritable(path, FxQuantError)
    for name, value in (("num_batches", num_batches - 1), ("most", most), ("seconds", seconds)):
        if value < 0:
            raise ConfigError(f"report: {name} is too small.")
    batches = list(itertools.islice(data, num_batches))
    if not batches:
        raise CalibrationError("report got no batches.")
    with left_as_it_was(float_model, quantized), steps("measuring", 5, wanted=progress) as step:
        sides = set_side_by_side(float_model, quantized, batches[0], concrete_args or {}, "report")
        made = _measure(
            *(float_model, sides, _converted(quantized), batches, step),
            evaluate=evaluate,
            most=most,
            engines=engines,
            seconds=seconds,
        )
    made["title"] = title or user_class(float_model).__name__
    made["made"] = _made_with()
    made["headlines"] = _headlines(made)
    plain = {key: finite(each, digits=6) for key, each in made.items()}
    target = Path(path)
    with replacing(target, FxQuantError) as part:
        part.write_text(render(plain), encoding="utf-8")
    return Report(path=target, data=plain)


def _measure(
    float_model: nn.Module,
    sides: Sides,
    converted: nn.Module,
    batches: list[object],
    step: Callable[[str], None],
    *,
    evaluate: Callable[[nn.Module], object] | None,
    most: int,
    engines: Iterable[str] | None,
    seconds: float,
) -> Json:
    """Gather every part of the page that is measured."""
    found = compare_sides(sides, batches)
    step("graphs")
    made: Json = {"graphs": gather_graphs(sides, found, batches), "weights": gather_weights(found)}
    made["compare"] = {"text": found.summary().splitlines(), "sqnr": found.output_sqnr, "batches": found.batches}
    made["compare"]["dead"] = [list(each) for each in found.dead]
    step("what would help")
    tried = try_fixes(sides, found, batches[:_TRIED_ON], most=most) if most else None
    made["tried"] = _tried(tried, min(len(batches), _TRIED_ON))
    made["account"] = gather_account(converted)
    step("scores")
    made["score"] = None if evaluate is None else gather_score(float_model, converted, evaluate)
    made["fixes"] = [] if tried is None else gather_fixes(sides, tried, evaluate, most=3)
    made["agreement"] = agreement(sides, converted, batches)
    step("speed")
    made["speed"] = gather_speed(float_model, converted, batches[0], engines, seconds) if seconds else None
    return made


def _converted(quantized: nn.Module) -> nn.Module:
    """Return a model that can be timed, of one in any stage."""
    stages = {stage_of(region) for _, region in regions(quantized)}
    return convert_fx(quantized) if Stage.PREPARED in stages else quantized


def _tried(tried: Tried | None, batches: int) -> Json | None:
    if tried is None:
        return None
    kernels = [
        {"box": "/".join(each.kernel), "path": each.path, "kind": each.kind, "sqnr": each.sqnr, "gain": each.gain}
        for each in tried.kernels
    ]
    exact = {"exact_weights": tried.exact_weights, "exact_activations": tried.exact_activations}
    return {"sqnr": tried.sqnr, "batches": batches, **exact, "kernels": kernels}


def _made_with() -> dict[str, str]:
    found = {"Python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["threads"] = str(torch.get_num_threads())
    found["made"] = time.strftime("%Y-%m-%d %H:%M")
    return found


def _headlines(made: Json) -> list[str]:
    """Return what a reader wants first, as sentences."""
    lines = []
    if (score := made["score"]) is not None:
        lines.append(f"score {score['int8']:.4g}, float {score['float']:.4g}")
    if (same := made["agreement"]) is not None:
        lines.append(f"same top answer as float in {same['same'] / same['every']:.1%} of {same['every']} samples")
    if not math.isnan(made["compare"]["sqnr"]):
        lines.append(f"outputs {made['compare']['sqnr']:.1f} dB from the float model's")
    quantized, every = made["account"]["weighted"]
    lines.append(f"{quantized} of {every} ops with weights are quantized")
    if (speed := made["speed"]) is not None:
        base = next(row for row in speed["rows"] if row["name"] == "float")
        best = min((row for row in speed["rows"] if row["name"] != "float"), key=lambda row: row["ms"], default=base)
        busy = ", on a busy machine" if speed["busy"] else ""
        lines.append(
            f"{best['name']}: {best['ms']:.2f} ms, float {base['ms']:.2f} ms ({base['ms'] / best['ms']:.1f}x{busy})"
        )
        lines.append(f"{best['size']:.2f} MiB, float {base['size']:.2f} MiB")
    return lines
