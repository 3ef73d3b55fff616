"""The `fxquant` command: a thin shell over the package. Commands import what they need when they run."""

from __future__ import annotations

from enum import Enum
from importlib.metadata import version
from typing import Annotated

import typer

app = typer.Typer(name="fxquant", help="Graph-mode int8 quantization for PyTorch.", no_args_is_help=True)


class Mode(str, Enum):
    static = "static"
    dynamic = "dynamic"
    weight_only = "weight_only"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fxquant {version('fxquant')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Graph-mode int8 quantization for PyTorch."""


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the split, the weights and the batches.")] = 0,
    mode: Annotated[Mode, typer.Option(help="How activations are quantized.")] = Mode.static,
) -> None:
    """Train a small conv net on scikit-learn's digits, quantize it, and compare the two."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        typer.echo("The demo needs scikit-learn for its images. Run: pip install 'fxquant[demo]'", err=True)
        raise typer.Exit(code=1) from None

    from fxquant.demo import run

    run(epochs=epochs, seed=seed, mode=mode.value)
