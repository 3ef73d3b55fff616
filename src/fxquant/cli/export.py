"""`fxquant export`: a saved model in another format."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from fxquant.cli.options import Data, Debug, File, Float, first_batch, load_model, one_line


def _formats() -> list[str]:
    from fxquant.exports import FORMATS

    return list(FORMATS)


def export(
    path: File,
    output: Annotated[Path, typer.Argument(help="What to write: .onnx, .pt2, .pte, .json; for integers a directory.")],
    form: Annotated[
        str | None,
        typer.Option("--format", help="Where the name of the output does not say.", autocompletion=_formats),
    ] = None,
    model: Float = None,
    data: Data = None,
    dynamic_batch: Annotated[bool, typer.Option(help="Leave the batch open (onnx, pt2).")] = False,
    opset: Annotated[int | None, typer.Option(help="Of ONNX; 18 to 24.")] = None,
    debug: Debug = False,
) -> None:
    """Write a saved model as ONNX, ExecuTorch, torch.export, JSON, or integers."""
    with one_line(debug):
        chosen = form or _by_suffix(output)
        options: dict[str, object] = {"dynamic_batch": True} if dynamic_batch else {}
        written = _write(path, output, chosen, model, data, options if opset is None else {**options, "opset": opset})
    typer.echo(f"wrote {written}")


def _by_suffix(output: Path) -> str:
    from fxquant.errors import ConfigError
    from fxquant.exports import FORMATS

    named = {suffix: name for name, (suffix, _) in FORMATS.items() if suffix}
    if output.suffix not in named:
        raise ConfigError(
            f"the name {str(output)!r} says no format. Give --format, or a name that ends in {', '.join(named)}."
        )
    return named[output.suffix]


def _write(
    path: Path, output: Path, form: str, model: str | None, data: str | None, options: dict[str, object]
) -> object:
    from fxquant.config.forms import closest
    from fxquant.engines.example import example_of
    from fxquant.errors import ConfigError
    from fxquant.exports import FORMATS

    if form not in FORMATS:
        raise ConfigError(f"--format {form!r} is unknown.{closest(form, FORMATS)} Known: {', '.join(FORMATS)}.")
    taken = {name: inspect.signature(write).parameters for name, (_, write) in FORMATS.items()}
    for option in options:
        if option not in taken[form]:
            names = " and ".join(name for name, parameters in taken.items() if option in parameters)
            raise ConfigError(f"--{option.replace('_', '-')} is of {names}, not of {form}. Leave it out.")
    found = load_model(path, model, "reference")
    examples: tuple[object, ...] = ()
    if "example_inputs" in taken[form]:
        examples = (example_of(found) if data is None else first_batch(data),)
    return FORMATS[form][1](found, output, *examples, **options)
