"""What each kernel of the native engine costs, against what the CPU can do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxquant.engines.choose import check_engine
from fxquant.engines.native.inputs import first_sample
from fxquant.engines.native.one_by_one import OneByOne
from fxquant.engines.native.peak import peak
from fxquant.engines.native.program import Program
from fxquant.engines.native.runner import NativeRunner
from fxquant.errors import StageError
from fxquant.graph.check_model import refuse_other
from fxquant.graph.region import Region, region_name, regions, runner_of
from fxquant.tables.present import Shown, new_table

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("kernel", "count", "ms", "time", "GMAC/s", "of peak")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Kernels of one kind and shape: how many, the time of all of them, and their products."""

    kernel: str
    count: int
    milliseconds: float
    macs: int
    share: float  # of the time
    of_peak: float  # of the products that the CPU can do in that time

    @property
    def gmacs(self) -> float:
        """Billions of products in a second."""
        return self.macs / self.milliseconds / 1e6 if self.milliseconds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Profile(Shown):
    """The rows, slowest first, for one sample on one thread; printing it shows a table."""

    rows: tuple[Row, ...]
    peak: float  # GMAC/s
    machine: str

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def milliseconds(self) -> float:
        return sum(row.milliseconds for row in self.rows)

    @property
    def of_peak(self) -> float:
        """The share of the peak that the whole reaches."""
        return sum(row.macs for row in self.rows) / (self.milliseconds * 1e6 * self.peak) if self.milliseconds else 0.0

    def to_json(self) -> str:
        """Return the same as text for other programs."""
        return json.dumps({"machine": self.machine, "peak": self.peak, "rows": [asdict(row) for row in self.rows]})

    def table(self) -> Table:
        """Return the rows as a rich table."""
        title = f"{self.machine}: {self.milliseconds:.2f} ms, {self.of_peak:.0%} of {self.peak:.0f} GMAC/s"
        table = new_table(title, _COLUMNS, whole=_COLUMNS[:1], right=_COLUMNS[1:])
        for row in self.rows:
            rate = (f"{row.gmacs:.0f}", f"{row.of_peak:.0%}") if row.macs else ("", "")
            table.add_row(row.kernel, str(row.count), f"{row.milliseconds:.3f}", f"{row.share:.1%}", *rate)
        return table

    def parts(self) -> tuple[Table]:
        """Return the table."""
        return (self.table(),)


def profile(
    model: nn.Module,
    *args: object,
    rounds: int = 50,
    example_kwargs: Mapping[str, object] | None = None,
    show: bool = True,
) -> Profile:
    """Time every kernel of a model on the native engine, for inputs like these; print the table (`show`) and return it.

    `args` are the positional arguments of one call, and `example_kwargs` its keyword arguments. One sample is run, on
    one thread; a kernel's time is the least of some `rounds`, without what a call from Python takes by itself. What
    Python runs between kernels has rows of its own, and so has a part of the model that runs on oneDNN, for the inputs
    as they are; code outside of the graphs is not in it.

    Example:
        >>> quantized = fq.quantize(model, loader, engine="native")  # needs fxquant[native]
        >>> fq.profile(quantized, loader[0], rounds=2, show=False).milliseconds > 0
        True
    """
    refuse_other(model, "profile")
    runners = [runner_of(region) for _, region in regions(model)]
    found = [runner for runner in runners if isinstance(runner, NativeRunner)]
    if not found:
        check_engine("native")
        raise StageError("profile needs a model on the native engine: convert_fx(..., engine='native').")
    calls: list[tuple[Program | Region, list[Any]]] = []
    with torch.no_grad():
        for _ in range(2):  # makes the code, if there is none for these sizes
            model(*args, **(example_kwargs or {}))
        for runner in found:
            runner.listener = lambda ran, inputs: calls.append((ran, inputs))
        try:
            model(*args, **(example_kwargs or {}))
        finally:
            for runner in found:
                runner.listener = None
    programs = [ran for ran, _ in calls if isinstance(ran, Program)]
    if not programs:
        whys = "".join(f"\n  {region_name(region)!r}: {why}" for region, why in _passed_on(model))
        raise StageError(f"no part of the model runs in native code for these inputs.{whys}")
    with torch.no_grad():
        timed = [
            _steps(ran, inputs, rounds) if isinstance(ran, Program) else [_on_onednn(ran, inputs, rounds)]
            for ran, inputs in calls
        ]
    result = _summed(timed, programs[0])
    if show:
        print(result)
    return result


def _passed_on(model: nn.Module) -> Iterator[tuple[Region, str]]:
    """Yield the regions whose calls ran on oneDNN, and why."""
    for _, region in regions(model):
        runner = runner_of(region)
        if isinstance(runner, NativeRunner) and runner.passed_on:
            yield region, runner.passed_on


def _steps(program: Program, inputs: list[object], rounds: int) -> list[tuple[str, int, float]]:
    """(label, products, seconds) of each kernel, and of each node that Python runs."""
    steps = OneByOne(program, first_sample(inputs))
    outside = steps.outside()
    best = _least([*(steps.bound(index) for index in range(len(steps.ops))), steps.nothing()], rounds)
    kernels = [(op.label, op.macs, max(spent - best[-1], 0.0)) for op, spent in zip(steps.ops, best[:-1], strict=True)]
    others = zip(outside, _least([call for _, call in outside], rounds), strict=True)
    return [*kernels, *((label, 0, spent) for (label, _), spent in others)]


def _on_onednn(region: Region, inputs: list[Any], rounds: int) -> tuple[str, int, float]:
    runner, (args, kwargs) = runner_of(region), inputs
    assert isinstance(runner, NativeRunner)
    (spent,) = _least([lambda: runner.lowered(region, args, kwargs)], rounds)
    return f"{region_name(region)}, on oneDNN", 0, spent


def _least(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the least time of each call, in turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def _summed(timed: list[list[tuple[str, int, float]]], program: Program) -> Profile:
    most = peak(program.machine)
    totals: dict[str, tuple[int, int, float]] = {}
    for label, macs, spent in (each for steps in timed for each in steps):
        count, products, seconds = totals.get(label, (0, 0, 0.0))
        totals[label] = (count + 1, products + macs, seconds + spent)
    whole = sum(seconds for _, _, seconds in totals.values())
    rows = [
        Row(
            kernel=label,
            count=count,
            milliseconds=seconds * 1e3,
            macs=products,
            share=seconds / whole if whole else 0.0,  # kernels may take no longer than the call that does nothing
            of_peak=products / (seconds * most) if seconds else 0.0,
        )
        for label, (count, products, seconds) in totals.items()
    ]
    rows.sort(key=lambda row: -row.milliseconds)
    return Profile(rows=tuple(rows), peak=most / 1e9, machine=program.machine.name)
