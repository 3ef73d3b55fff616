"""What the commands share: options, how results are printed, and errors as one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

if TYPE_CHECKING:
    from torch import nn

OUT_OF_TOLERANCE = 3  # the exit code of work that was done, with a result that is not good enough


def _engines() -> list[str]:
    from fxquant.engines.table import ENGINES

    return [*(engine.name for engine in ENGINES), "auto"]


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
File = Annotated[Path, typer.Argument(help="A file that fxquant.save wrote.")]
Float = Annotated[str | None, typer.Option("--model", help="package.module:function that gives the float model.")]
NeededFloat = Annotated[str, typer.Option("--model", help="package.module:function that gives the float model.")]
Data = Annotated[str | None, typer.Option(help="package.module:function that gives batches; one is used.")]
NeededData = Annotated[str, typer.Option(help="package.module:function that gives batches.")]
EngineName = Annotated[str | None, typer.Option(help="What is to run the model.", autocompletion=_engines)]
Engines = Annotated[
    list[str] | None, typer.Option("--engine", help="One to time; may be repeated.", autocompletion=_engines)
]
Workers = Annotated[int, typer.Option(min=1, help="Trials at a time.")]


@contextmanager
def one_line(debug: bool) -> Iterator[None]:
    """An error as a line with what to do, unless the traceback is asked for. The exit code is 1."""
    from fxquant.errors import FxQuantError

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except FxQuantError as error:
        if debug:
            raise
        _fail(str(error))
    except Exception as error:  # of the user's functions, of files, of what is not installed
        if debug:
            raise
        text = " ".join(str(error).split()) or "no message"
        _fail(f"{type(error).__name__}{_line_of(error)}: {text} (--debug shows more)")


def _line_of(error: Exception) -> str:
    """Return " at file.py:12 in function", for the innermost line below the current directory; "" if there is none."""
    import traceback

    from fxquant.capture.source_lines import is_users

    frames = [each for each in traceback.extract_tb(error.__traceback__) if is_users(each.filename)]
    here = [each for each in frames if Path.cwd() in Path(each.filename).parents]
    own = [each for each in here if "site-packages" not in each.filename]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _fail(text: str) -> None:
    typer.echo(f"fxquant: {text}", err=True)
    raise typer.Exit(code=1) from None


class _Result(Protocol):
    def to_dict(self) -> object: ...


def print_result(result: _Result, as_json: bool) -> None:
    """A result as text, or its `to_dict` as JSON."""
    if as_json:
        print_json(result.to_dict())
    else:
        typer.echo(str(result))


def print_json(value: object) -> None:
    import json

    from fxquant.tables.present import finite

    typer.echo(json.dumps(finite(value), indent=1, allow_nan=False))


def load_model(path: Path, model: str | None, engine: str | None = None) -> nn.Module:
    """Return a saved model, with what a float model by name adds to the file.

    What reads the graph alone asks for engine "reference", for which no code is compiled.
    """
    from fxquant.api import load
    from fxquant.config_file.named import find_named

    return load(path, None if model is None else find_named(model, "--model")(), engine=engine)


def float_model(model: str) -> nn.Module:
    """Return the float model that a function gives, ready to run."""
    from fxquant.config_file.named import find_named
    from fxquant.graph.check_model import refuse_other

    made: nn.Module = find_named(model, "--model")()
    refuse_other(made, f"--model {model}")
    return made.eval()


def first_batch(data: str) -> object:
    """Return the first batch that a function gives."""
    from fxquant.errors import ConfigError

    for batch in batches(data):
        return batch
    raise ConfigError(f"--data {data!r} gives no batches.")


def batches(data: str) -> Iterable[object]:
    """Return the batches that a function gives."""
    from fxquant.config_file.named import find_named
    from fxquant.errors import ConfigError

    made: Iterable[object] = find_named(data, "--data")()
    if not isinstance(made, Iterable):
        raise ConfigError(f"--data {data!r} gave a {type(made).__name__}. Let it return an iterable of batches.")
    return made
