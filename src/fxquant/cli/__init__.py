"""The `fxquant` command: a thin shell over the package. Commands import what they need when they run.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 done, but not within the tolerance that was asked for.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fxquant.cli import export, make, saved, start

app = typer.Typer(
    name="fxquant",
    help="Graph-mode int8 quantization for PyTorch.",
    epilog="Exit codes: 0 done, 1 an error, 2 wrong usage, 3 done, but not within the tolerance.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
show = typer.Typer(help="Print what fxquant knows.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fxquant {version('fxquant')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Graph-mode int8 quantization for PyTorch."""


for command, example in (
    (start.demo, "demo --output /tmp/demo"),
    (start.init, "init conf.yaml --approach quant_aware_training"),
    (make.quantize, "quantize --model models:net --calibration models:batches --output net.fq"),
    (make.tune, "tune --model models:net --data models:batches --evaluate models:score --tolerance 0.005"),
    (saved.bench, "bench net.fq --model models:net"),
    (saved.compare, "compare net.fq --model models:net --data models:batches"),
    (saved.report, "report net.fq --model models:net --data models:batches --output net.html"),
    (saved.check, "check net.fq --json"),
    (make.forecast, "forecast --model models:net --target tflite --shape 1,3,224,224"),
    (export.export, "export net.fq net.onnx --dynamic-batch"),
    (start.schema, "schema > conf.schema.json"),
):
    app.command(epilog=f"Example: fxquant {example}")(command)

show.command("model", epilog="Example: fxquant show model net.fq --only float")(saved.show_model)
show.command("target", epilog="Example: fxquant show target x86-vnni --json")(saved.show_target)
app.add_typer(show, name="show")
