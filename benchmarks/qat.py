"""What a training step with quantization in the loop costs; `benchmarks/recipes.py` has what training recovers.

ResNet-18, batch 32: time and peak memory of a step, as a ratio to the float step
the bars: at most 1.6 times the time and 1.5 times the memory
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

import fxquant as fq
from _models import random_network
from _peers import torch_ao_training
from _schemes import SCHEMES

MAX_TIME, MAX_MEMORY = 1.6, 1.5
STEPS = ("float", "fxquant", "fxquant W4A4 LSQ", "torch.ao")


class Step:
    """A training step of ResNet-18 at batch 32, to be called."""

    def __init__(self, which: str) -> None:
        model = random_network("resnet18", statistics=False).train()
        self.images, self.labels = torch.randn(32, 3, 224, 224), torch.randint(0, 1000, (32,))
        if which == "fxquant":
            model = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping("x86"), (self.images[:2],))
        elif which == "fxquant W4A4 LSQ":
            model = fq.prepare_qat_fx(model, {"": SCHEMES["W4A4"].training}, (self.images[:2],))
        elif which == "torch.ao":
            model = torch_ao_training(model, self.images)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def __call__(self) -> float:
        """Seconds."""
        started = time.perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        return time.perf_counter() - started


def peak_megabytes(which: str) -> float:
    """Of two steps in a process of their own, so that peaks do not mix."""
    command = [sys.executable, __file__, "--measure", which]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def step_table(console: Console, rounds: int) -> None:
    """All take turns, so that what else the machine does meets all of them."""
    # first, while this process is small: a child starts with the peak of the process that forked it
    memory = {which: peak_megabytes(which) for which in STEPS}
    steps = {which: Step(which) for which in STEPS}
    for step in steps.values():
        step()
    seconds = {which: [0.0] * rounds for which in STEPS}
    for index in range(rounds):
        for which, step in steps.items():
            seconds[which][index] = step()
    table = Table(title=f"A training step of ResNet-18, batch 32, {rounds} rounds", title_justify="left")
    for column in ("run by", "seconds, fastest", "ratio, median of rounds", "peak MB", "ratio"):
        table.add_column(column, justify="left" if column == "run by" else "right")
    ratios = {}
    for which in STEPS:
        slower = median(mine / theirs for mine, theirs in zip(seconds[which], seconds["float"], strict=True))
        ratios[which] = (slower, memory[which] / memory["float"])
        values = (f"{min(seconds[which]):.2f}", f"{slower:.2f}", f"{memory[which]:.0f}", f"{ratios[which][1]:.2f}")
        table.add_row(which, *values)
    console.print(table)
    met = ratios["fxquant"][0] <= MAX_TIME and ratios["fxquant"][1] <= MAX_MEMORY
    console.print(f"bar: at most {MAX_TIME} x the time and {MAX_MEMORY} x the memory: {'met' if met else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of training steps that are timed")
    parser.add_argument("--measure", choices=STEPS, help=argparse.SUPPRESS)
    args = parser.parse_args()

    torch.manual_seed(0)
    if args.measure:
        step = Step(args.measure)
        step(), step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    step_table(Console(width=110), args.rounds)


if __name__ == "__main__":
    main()
