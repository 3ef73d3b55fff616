"""What a model costs on each engine: time, size on disk and peak memory, beside the float model."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fxquant.core.graph import regions
from fxquant.core.own import copy_model
from fxquant.engines.choose import available, on_engines
from fxquant.engines.example import example_of
from fxquant.engines.lower import unlower
from fxquant.engines.timing import Timing, time_interleaved
from fxquant.errors import ArchiveError, StageError
from fxquant.export.archive import write_archive


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One way to run the model. `memory` is what a call adds to the process at its peak, in MiB, where known."""

    name: str
    timing: Timing
    speedup: float | None
    size: float
    memory: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """The rows, fastest last measured together; printing it shows a table."""

    rows: tuple[Row, ...]
    threads: int

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def table(self) -> Table:
        """The rows as a rich table."""
        table = Table(title=f"{self.threads} thread(s)", title_justify="left", box=None, pad_edge=False)
        for column in ("engine", "ms", "10% .. 90%", "speed-up", "size, MiB", "peak memory, MiB"):
            table.add_column(column, justify="left" if column == "engine" else "right")
        for row in self.rows:
            speedup = "" if row.speedup is None else f"{row.speedup:.2f}x"
            memory = "" if row.memory is None else f"{row.memory:.1f}"
            spread = f"{row.timing.low:.2f} .. {row.timing.high:.2f}"
            table.add_row(row.name, f"{row.timing.median:.2f}", spread, speedup, f"{row.size:.2f}", memory)
        return table

    def __str__(self) -> str:
        console = Console(width=100, no_color=True)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    def __rich__(self) -> Table:
        return self.table()


def benchmark(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    float_model: nn.Module | None = None,
    seconds: float = 3.0,
) -> Benchmark:
    """Time a converted model on every engine installed here, interleaved, and print and return the table.

    Give `float_model` to have it in the same run, with speed-ups against it. Without example inputs, random
    ones of the shapes that the model was prepared with are used.
    """
    found = list(regions(model))
    if not found or any(region._region.stage != "converted" for _, region in found):
        raise StageError("benchmark needs a model from convert_fx or quantize.")
    args, kwargs = _inputs(model, example_inputs, example_kwargs)
    plain = copy_model(model)
    for _, region in regions(plain):
        unlower(region)
    models: dict[str, nn.Module] = {} if float_model is None else {"float": float_model}
    models.update(on_engines(plain, available()) or {"reference": plain})
    calls = {name: functools.partial(each, *args, **kwargs) for name, each in models.items()}
    memory = {name: _peak(call) for name, call in calls.items()}
    times = time_interleaved(calls, seconds=seconds * len(calls))
    base = times["float"].median if "float" in times else None
    rows = [
        Row(
            name=name if not _passed_on(each) else f"{name}, passed on to onednn",
            timing=times[name],
            speedup=None if base is None else base / times[name].median,
            size=_size(each),
            memory=memory[name],
        )
        for name, each in models.items()
    ]
    result = Benchmark(rows=tuple(rows), threads=torch.get_num_threads())
    Console().print(result.table())
    return result


def _passed_on(model: nn.Module) -> bool:
    """Whether a runtime did not take the calls, since they were of other sizes than the example's."""
    return any(getattr(region._region.runner, "told", None) for _, region in regions(model))


def _inputs(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if inputs is None and kwargs is None:
        return (), example_of(model)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    return tuple(inputs or ()), dict(kwargs or {})


def _size(model: nn.Module) -> float:
    """MiB on disk."""
    if any(True for _ in regions(model)):
        with contextlib.suppress(ArchiveError), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            write_archive(model, path)
            return path.stat().st_size / 2**20
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell() / 2**20


def _peak(call: Any) -> float | None:
    """MiB that one call adds to the resident memory at its peak; Linux lets a process reset its high-water mark."""
    with torch.inference_mode():
        call()
        try:
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
            call()
            return max(_status("VmHWM") - before, 0.0)
        except OSError:
            return None


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")
