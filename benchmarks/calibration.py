"""Time and memory of one calibration pass, against the float forward pass over the same batches.

Time: the passes go batch by batch, interleaved, and each batch gives a ratio; shown are the median and the quartiles.
Where the quartiles lie far apart the machine was busy and the ratio says little; --cpu then gives CPU time on one
thread, which waiting does not inflate. Convert, where the ranges are searched, is timed apart. The bar: a median of at
most 1.5.

Memory: the peak of a process of its own for each case. The control keeps every batch, to show that the measure sees
growth. The bar: the peak of fxquant does not grow with the number of batches.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fxquant as fq
from _models import pictures, random_network
from _peers import run, torch_ao_converted, torch_ao_prepared

MAX_RATIO = 1.5
WIDE = 1.3  # quartiles further apart than this factor come from the machine, not from the work
MAX_GROWTH = 1.05
# glibc raises its mmap threshold as it goes; the heap then fragments and grows by some 5 to 10 % over the first 20
# batches, in the float pass too. With a fixed threshold large tensors go back at once, and the peak is what is in use.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
CASES = ("float", "fxquant", "torch.ao")
CONTROL = "control"


def prepare(case: str, model: nn.Module, example: Tensor) -> nn.Module:
    """The model whose forward pass is the case."""
    if case == "fxquant":
        return fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (example,))
    return torch_ao_prepared(model, example) if case == "torch.ao" else model


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def one_batch(case: str, model: nn.Module, batch: Tensor, clock: Callable[[], float]) -> float:
    if case == "fxquant":
        return seconds(lambda: fq.calibrate(model, [batch]), clock)
    return seconds(lambda: run(model, [batch]), clock)


def time_rows(name: str, args: argparse.Namespace) -> tuple[list[list[str]], bool]:
    """A row per case, and whether the bar is met."""
    clock = time.process_time if args.cpu else time.perf_counter
    model = random_network(name, args.seed)
    batches = pictures("calibration", batches=args.batches, batch_size=args.batch_size, seed=args.seed)
    fresh = {case: prepare(case, model, batches[0]) for case in CASES}
    for case in CASES:
        one_batch(case, copy.deepcopy(fresh[case]), batches[0], clock)  # to warm up
    times: list[dict[str, float]] = []
    for _ in range(args.rounds):
        used = {case: copy.deepcopy(fresh[case]) for case in CASES}
        for batch in batches:
            times.append({case: one_batch(case, used[case], batch, clock) for case in CASES})
    converts = {
        "fxquant": seconds(lambda: fq.convert_fx(used["fxquant"]), clock),
        "torch.ao": seconds(lambda: torch_ao_converted(used["torch.ao"]), clock),
    }
    rows, ratio = [], {}
    for case in CASES:
        low, ratio[case], high = quantiles([t[case] / t["float"] for t in times], n=4)
        convert = f"{converts[case]:.2f}" if case in converts else ""
        spread = "" if case == "float" else f"{low:.2f} - {high:.2f}" + (" busy!" if high > WIDE * low else "")
        fastest = min(t[case] for t in times)
        rows.append([name, case, f"{fastest:.3f}", f"{ratio[case]:.2f}", spread, convert])
    return rows, ratio["fxquant"] <= MAX_RATIO


def stream(count: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Batches made one at a time: the data themselves must not be what grows."""
    for index in range(count):
        yield from pictures("calibration", batches=1, batch_size=batch_size, seed=seed + index)


def print_peak(name: str, case: str, count: int, args: argparse.Namespace) -> None:
    """Calibrate in this process and print its peak memory in MB."""
    model = random_network(name, args.seed, statistics=False)  # taking them would set the peak
    prepared = prepare(case, model, next(stream(1, args.batch_size, args.seed)))
    kept = []
    with torch.no_grad():
        for batch in stream(count, args.batch_size, args.seed):
            prepared(batch)
            if case == CONTROL:
                kept.append(batch)
    print(peak_megabytes())


def peak_megabytes() -> float:
    """Linux's high-water mark of this process. getrusage's ru_maxrss would include the peak of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def peak_row(name: str, case: str, args: argparse.Namespace) -> tuple[list[str], bool]:
    peaks = []
    for count in args.memory_batches:
        command = [sys.executable, __file__, "--models", name, "--peak", case, str(count)]
        command += ["--batch-size", str(args.batch_size), "--seed", str(args.seed)]
        result = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **MALLOC})
        peaks.append(float(result.stdout.split()[-1]))
    growth = peaks[1] / peaks[0]
    return [name, case, *(f"{peak:.0f}" for peak in peaks), f"{growth:.3f}"], growth <= MAX_GROWTH


def add_columns(table: Table, columns: tuple[str, ...]) -> None:
    for column in columns:
        table.add_column(column, justify="left" if column in ("network", "pass") else "right")


def time_table(console: Console, args: argparse.Namespace) -> None:
    clock = "CPU time, one thread" if args.cpu else "wall time"
    table = Table(title=f"A pass over batches of {args.batch_size} pictures, {clock}", title_justify="left")
    add_columns(table, ("network", "pass", "fastest batch s", "x float", "quartiles", "convert s"))
    timed = [time_rows(name, args) for name in args.models]
    for rows, _ in timed:
        for row in rows:
            table.add_row(*row)
    console.print(table)
    met = all(ok for _, ok in timed)
    console.print(f"bar: fxquant calibration <= {MAX_RATIO} x float forward: {'met' if met else 'MISSED'}")


def memory_table(console: Console, args: argparse.Namespace) -> None:
    few, many = args.memory_batches
    table = Table(title="Peak memory of the process in MB", title_justify="left")
    add_columns(table, ("network", "pass", f"{few} batches", f"{many} batches", "growth"))
    peaks = {case: peak_row(args.models[0], case, args) for case in (*CASES, CONTROL)}
    for row, _ in peaks.values():
        table.add_row(*row)
    console.print(table)
    if peaks[CONTROL][1]:
        console.print("the control does not grow either: this measure sees nothing here. Use more --memory-batches.")
        return
    met = peaks["fxquant"][1]
    console.print(f"bar: the peak of fxquant does not grow with the batches: {'met' if met else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=("resnet18", "mobilenetv2_100"), help="timm names")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-batches", nargs=2, type=int, default=(2, 16), help="two numbers of batches")
    parser.add_argument("--cpu", action="store_true", help="CPU time on one thread instead of wall time")
    parser.add_argument("--only", choices=("time", "memory"), help="run one part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "BATCHES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        print_peak(args.models[0], args.peak[0], int(args.peak[1]), args)
        return

    if args.cpu:
        torch.set_num_threads(1)
    console = Console(width=110)
    if args.only != "memory":
        time_table(console, args)
    if args.only != "time":
        memory_table(console, args)


if __name__ == "__main__":
    main()
