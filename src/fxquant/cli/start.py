"""Commands to start with: the demo, and files to fill in."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fxquant.cli.options import AsJson, Debug, one_line, print_json


class Approach(str, Enum):
    post_training_static_quant = "post_training_static_quant"
    post_training_dynamic_quant = "post_training_dynamic_quant"
    post_training_auto_quant = "post_training_auto_quant"
    quant_aware_training = "quant_aware_training"
    weight_only = "weight_only"


def demo(
    output: Annotated[Path, typer.Option(help="Directory for the model and the report.")] = Path("fxquant-demo"),
    digits: Annotated[bool, typer.Option("--digits", help="Train a tiny net on digits instead.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the crops, or of the training.")] = 0,
    open_report: Annotated[bool, typer.Option("--open/--no-open", help="Show the report, in a terminal.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Quantize a real picture classifier, set both side by side on every engine, and write a report."""
    with one_line(debug):
        from fxquant.demo.run import run

        made = run(output=output, digits=digits, seed=seed, quiet=as_json, show=open_report)
    if as_json:
        print_json(made)


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("conf.yaml"),
    approach: Annotated[
        Approach, typer.Option(help="How the model is quantized.")
    ] = Approach.post_training_static_quant,
    debug: Debug = False,
) -> None:
    """Write a commented conf.yaml to start from."""
    with one_line(debug):
        from fxquant.config_file.command import write_template

        write_template(path, approach.value)
    typer.echo(f"wrote {path}. Next: fxquant quantize {path} --model package.module:function")


def schema() -> None:
    """Print the JSON schema of conf.yaml, for editors."""
    from fxquant.config_file import json_schema

    print_json(json_schema())
