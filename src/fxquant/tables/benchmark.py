"""What a model costs on each engine: time, size on disk and peak memory, beside the float model."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fxquant.archive.archive import write_archive
from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.engines.choose import check_engine, on_engines
from fxquant.engines.engine import Engine
from fxquant.engines.example import example_of
from fxquant.engines.machine_load import busy_note, watch_others
from fxquant.engines.table import as_engine, available_engines
from fxquant.engines.timing import Timing, time_interleaved
from fxquant.errors import ArchiveError, ConfigError, StageError
from fxquant.graph.check_model import refuse_other
from fxquant.graph.lowering import unlower
from fxquant.graph.own import copy_model
from fxquant.graph.region import regions, runner_of, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.tree import is_value, tree_of
from fxquant.tables.present import Shown, new_table

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("engine", "ms", "10% .. 90%", "speed-up", "size, MiB", "peak memory, MiB")
_MEANING = (
    "ms: median of one call, engines in turn; 10% .. 90%: of all calls; size: of the saved file; "
    "peak memory: what one call adds to the process"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One way to run the model. `memory` is what a call adds to the process at its peak, in MiB, where known.

    Of `regions`, `passed_on` ran on onednn, as the engine does not take calls of their sizes.
    """

    name: str
    timing: Timing
    speedup: float | None
    size: float
    memory: float | None
    regions: int = 1
    passed_on: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Benchmark(Shown):
    """The rows, measured together; printing it shows a table.

    `others` is the share of the machine's CPUs that other processes had meanwhile, where it is known.
    """

    rows: tuple[Row, ...]
    threads: int
    others: float | None = None

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Row:
        found = next((row for row in self.rows if row.name == name), None)
        if found is None:
            raise ConfigError(f"{name!r} was not timed. There is: {', '.join(row.name for row in self.rows)}.")
        return found

    def table(self) -> Table:
        """Return the rows as a rich table."""
        title = f"{self.threads} thread{'s' * (self.threads != 1)}"
        table = new_table(title, _COLUMNS, whole=("engine",), right=_COLUMNS[1:])
        for row in self.rows:
            speedup = "" if row.speedup is None else f"{row.speedup:.{2 if row.speedup < 100 else 0}f}x"
            memory = "" if row.memory is None else f"{row.memory:.1f}"
            spread = f"{row.timing.low:.2f} .. {row.timing.high:.2f}"
            table.add_row(row.name, f"{row.timing.median:.2f}", spread, speedup, f"{row.size:.2f}", memory)
        return table

    def advice(self) -> str:
        """Return what to do where int8 is slower than float; nothing elsewhere."""
        slow = [row.name for row in self.rows if row.speedup is not None and row.speedup < 1]
        if not slow:
            return ""
        best = max((row for row in self.rows if row.name != "float"), key=lambda row: row.speedup or 0.0)
        todo = (
            f"Take engine={best.name!r}"
            if best.name not in slow
            else "Small models gain little at batch 1: try a larger batch"
        )
        return (
            f"slower than float: {', '.join(slow)}. {todo}; fxquant.explain(model) says what runs in float, "
            "fxquant.profile(model) what each kernel costs."
        )

    def remarks(self) -> list[str]:
        """Return which engines did not run all of the model, and whether others kept the machine busy."""
        lines = [
            f"{row.name}: {row.passed_on} of {row.regions} region{'s' * (row.regions != 1)} ran on onednn, as "
            f"{row.name} does not take calls of their sizes."
            for row in self.rows
            if row.passed_on
        ]
        return [*lines, *filter(None, [busy_note(self.others)])]

    def to_dict(self) -> dict[str, object]:
        """Return all numbers, plain."""
        return {"threads": self.threads, "others": self.others, "rows": [asdict(row) for row in self.rows]}

    def parts(self) -> list[Table | str]:
        """Return the table, what its columns mean, whether to trust it, and what to do where int8 is slower."""
        return [self.table(), _MEANING, *self.remarks(), *filter(None, [self.advice()])]

    def __repr__(self) -> str:
        """One line, since `benchmark` prints the table."""
        return "Benchmark(" + ", ".join(f"{row.name}: {row.timing.median:.3g} ms" for row in self.rows) + ")"


def _named(engines: Iterable[Engine | str]) -> tuple[Engine, ...]:
    if isinstance(engines, str):
        raise ConfigError(f"engines is {engines!r}. Give a list, such as ['native', 'onednn'].")
    wanted = tuple(engines)
    for engine in wanted:
        check_engine(engine)
    return tuple(as_engine(engine) for engine in wanted)


def benchmark(
    model: nn.Module,
    example_inputs: object = None,
    *,
    example_kwargs: Mapping[str, object] | None = None,
    float_model: nn.Module | None = None,
    engines: Iterable[Engine | str] | None = None,
    seconds: float = 3.0,
    show: bool = True,
) -> Benchmark:
    """Time a converted model on every engine installed here, interleaved; print the table (`show`) and return it.

    `engines` names those that are wanted, each of which gets `seconds`. A runtime is given an ONNX export, which takes
    a while for a large model.

    `example_inputs` is a tensor, a tuple of positional arguments or a dict of keyword arguments; `example_kwargs` are
    more of the latter. Give `float_model` to have it in the same run, with speed-ups against it. Without example
    inputs, random ones of the shapes that the model was prepared with are used.

    Example:
        >>> result = fq.benchmark(fq.quantize(model, loader), loader[0], float_model=model, seconds=0.01, show=False)
        >>> result.rows[0].name
        'float'
    """
    refuse_other(model, "benchmark")
    if float_model is not None:
        refuse_other(float_model, "benchmark(float_model=...)")
    found = list(regions(model))
    if not found or any(stage_of(region) is not Stage.CONVERTED for _, region in found):
        raise StageError("benchmark needs a model from convert_fx or quantize.")
    args, kwargs = _inputs(model, example_inputs, example_kwargs)
    plain = copy_model(model)
    for _, region in regions(plain):
        unlower(region)
    models: dict[str, nn.Module] = {} if float_model is None else {"float": float_model}
    models.update(on_engines(plain, available_engines() if engines is None else _named(engines)))
    calls = {name: functools.partial(each, *args, **kwargs) for name, each in models.items()}
    with contextlib.nullcontext() if float_model is None else left_as_it_was(float_model):
        memory = {name: _peak(call) for name, call in calls.items()}
        others = watch_others()
        times = time_interleaved(calls, seconds=seconds * len(calls))
        share = others()
    base = times["float"].median if "float" in times else None
    rows = [
        Row(
            name=name,
            timing=times[name],
            speedup=None if base is None else base / times[name].median,
            size=_size(each),
            memory=memory[name],
            regions=sum(1 for _ in regions(each)),
            passed_on=_passed_on(each),
        )
        for name, each in models.items()
    ]
    result = Benchmark(rows=tuple(rows), threads=torch.get_num_threads(), others=share)
    if show:
        print(result)
    return result


def _passed_on(model: nn.Module) -> int:
    """Tell in how many regions an engine did not take the calls, since they were of other sizes than the example's."""
    runners = [runner_of(region) for _, region in regions(model)]
    return sum(runner is not None and bool(runner.told) for runner in runners)


def _inputs(
    model: nn.Module,
    inputs: object,
    kwargs: Mapping[str, object] | None,
) -> tuple[tuple[object, ...], dict[str, object]]:
    if inputs is None and kwargs is None:
        return (), example_of(model)
    if isinstance(inputs, Tensor):
        return (inputs,), dict(kwargs or {})
    if isinstance(inputs, Mapping):
        if not kwargs and is_value(inputs, tree_of(model).input_names):
            return (inputs,), {}
        return (), {**inputs, **(kwargs or {})}
    if inputs is not None and not isinstance(inputs, Iterable):
        raise ConfigError(f"benchmark: example_inputs is a {type(inputs).__name__}. Give a tensor, a tuple or a dict.")
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


def _peak(call: Callable[[], object]) -> float | None:
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
