"""`fxquant export`: a saved model in another format."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from fxquant.cli.options import Data, Debug, File, Float, first_batch, load_model, one_line


class Format(str, Enum):
    """What can be written."""

    onnx = "onnx"
    pt2 = "pt2"
    executorch = "executorch"
    json = "json"
    integers = "integers"


_BY_SUFFIX: Mapping[str, Format] = MappingProxyType(
    {".onnx": Format.onnx, ".pt2": Format.pt2, ".pte": Format.executorch, ".json": Format.json}
)


def export(
    path: File,
    output: Annotated[Path, typer.Argument(help="What to write: .onnx, .pt2, .pte, .json; for integers a directory.")],
    form: Annotated[Format | None, typer.Option("--format", help="Where the name of the output does not say.")] = None,
    model: Float = None,
    data: Data = None,
    dynamic_batch: Annotated[bool, typer.Option(help="Leave the batch open (onnx, pt2).")] = False,
    opset: Annotated[int | None, typer.Option(help="Of ONNX; 18 to 24.")] = None,
    debug: Debug = False,
) -> None:
    """Write a saved model as ONNX, ExecuTorch, torch.export, JSON, or integers."""
    with one_line(debug):
        written = _write(path, output, _format(output, form, dynamic_batch, opset), model, data, dynamic_batch, opset)
    typer.echo(f"wrote {written}")


def _format(output: Path, form: Format | None, dynamic_batch: bool, opset: int | None) -> Format:
    from fxquant.errors import ConfigError

    chosen = form or _BY_SUFFIX.get(output.suffix)
    if chosen is None:
        known = ", ".join(_BY_SUFFIX)
        raise ConfigError(f"the name {str(output)!r} says no format. Give --format, or a name that ends in {known}.")
    if opset is not None and chosen is not Format.onnx:
        raise ConfigError(f"--opset is of onnx, not of {chosen.value}. Leave it out.")
    if dynamic_batch and chosen not in (Format.onnx, Format.pt2):
        raise ConfigError(f"--dynamic-batch is of onnx and pt2, not of {chosen.value}. Leave it out.")
    return chosen


def _write(
    path: Path, output: Path, form: Format, model: str | None, data: str | None, dynamic_batch: bool, opset: int | None
) -> object:
    from fxquant import exports
    from fxquant.engines.example import example_of

    found = load_model(path, model, "reference")
    if form is Format.json:
        return exports.export_json(found, output)
    example: Any = example_of(found) if data is None else first_batch(data)
    if form is Format.onnx:
        return exports.export_onnx(found, output, example, dynamic_batch=dynamic_batch, opset=opset)
    if form is Format.pt2:
        return exports.export_pt2(found, output, example, dynamic_batch=dynamic_batch)
    if form is Format.integers:
        return exports.dump_integers(found, output, example)
    return exports.export_executorch(found, output, example)
