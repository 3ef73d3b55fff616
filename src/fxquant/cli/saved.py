"""Commands on saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fxquant.cli.options import (
    AsJson,
    Data,
    Debug,
    Engines,
    File,
    Float,
    NeededData,
    NeededFloat,
    batches,
    first_batch,
    float_model,
    load_model,
    one_line,
    print_json,
    print_result,
)


def show_target(
    name: Annotated[str, typer.Argument(help="A known name, or a YAML file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, which load_target reads, too.")] = False,
    debug: Debug = False,
) -> None:
    """Print a target: what runs in int8 there, on what grids, within which limits."""
    with one_line(debug):
        from fxquant.tables.show_target import target_table
        from fxquant.targets.file import find_target, to_plain

        target = find_target(name)
    if as_json:
        print_json(to_plain(target))
    else:
        typer.echo(str(target_table(target)))


def show_model(
    path: File,
    model: Float = None,
    only: Annotated[str | None, typer.Option(help="float, int8, dynamic, weight_only or float16 alone.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print what runs in int8 and what in float, and why."""
    with one_line(debug):
        from dataclasses import asdict

        from fxquant.tables.explain import explain
        from fxquant.tables.present import as_text

        account = explain(load_model(path, model))
        table = account.table(only=only)
    if as_json:
        told = account.to_dict()
        print_json({**told, "rows": [asdict(row) for row in account if only in (None, row.status)]})
    elif only is not None:
        typer.echo(as_text(table) if table.row_count else str(table.title))
    else:
        typer.echo(str(account))


def bench(
    path: File,
    model: Float = None,
    data: Data = None,
    engine: Engines = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="For each engine.")] = 3.0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Time a saved model on every engine here, beside its float model."""
    with one_line(debug):
        from fxquant.progress import steps
        from fxquant.tables.benchmark import benchmark

        floating = None if model is None else float_model(model)
        batch = None if data is None else first_batch(data)
        with steps("timing", 1, wanted=True):
            result = benchmark(
                *(load_model(path, model), batch), float_model=floating, engines=engine, seconds=seconds, show=False
            )
    print_result(result, as_json)


def compare(
    path: File,
    model: NeededFloat,
    data: NeededData,
    num_batches: Annotated[int, typer.Option("--batches", min=1, help="How many of them.")] = 8,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print how far a saved model is from the float one, layer by layer."""
    with one_line(debug):
        from fxquant.insight.compare import compare as run
        from fxquant.progress import following

        found = run(
            float_model(model),
            load_model(path, model, "reference"),
            following(batches(data), "comparing", wanted=True, most=num_batches),
        )
    print_result(found, as_json)


def report(
    path: File,
    model: NeededFloat,
    data: NeededData,
    output: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    evaluate: Annotated[str | None, typer.Option(help="package.module:function from a model to its score.")] = None,
    num_batches: Annotated[int, typer.Option("--batches", min=1, help="How many batches.")] = 8,
    most: Annotated[int, typer.Option(min=0, help="Kernels to try alone in float.")] = 16,
    engine: Engines = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="For each engine.")] = 1.0,
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file: both graphs, errors, speed, what stayed in float and why, what would help."""
    with one_line(debug):
        from fxquant.config_file.named import find_named
        from fxquant.html_report.report import report as run

        made = run(
            float_model(model),
            load_model(path, model),
            batches(data),
            output,
            evaluate=None if evaluate is None else find_named(evaluate, "--evaluate"),
            num_batches=num_batches,
            most=most,
            engines=engine,
            seconds=seconds,
            title=title,
            progress=True,
        )
    print_result(made, as_json)


def check(path: File, model: Float = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Read a file, verify all that is in it, and run it once."""
    with one_line(debug):
        from fxquant.engines.example import example_of
        from fxquant.graph.region import Region
        from fxquant.tables.explain import explain

        found = load_model(path, model)
        if isinstance(found, Region):  # inputs like those that it was quantized with are known
            import torch

            with torch.no_grad():
                found(**example_of(found))
        summary = explain(found).summary()
    if as_json:
        print_json({"path": str(path), "sound": True, "summary": summary})
    else:
        typer.echo(f"{path} is sound: {summary}")
