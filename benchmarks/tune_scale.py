"""What a trial costs and ships, measured on two workers, and a simulation from these figures up to 1,000 workers.

python benchmarks/tune_scale.py            docs/scale.md has a run of it
"""

from __future__ import annotations

import argparse
import functools
import heapq
import pickle
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.tuning import ranking
from fxquant.tuning.trial import Work

NETWORK = 1e9  # bytes per second from the head to a node
PER_NODE = 16  # workers


tune = functools.partial(fq.tune, tolerance=0, engine="onednn")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), *(Block(32) for _ in range(8))]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


class Agreement:
    def __init__(self, model: nn.Module, samples: int) -> None:
        self.images = torch.randn(samples, 3, 16, 16)
        with torch.no_grad():
            self.wanted = torch.cat([model(x) for x in self.images.split(32)])

    def __call__(self, model: nn.Module) -> float:
        found = torch.cat([model(x) for x in self.images.split(32)])
        return float(nn.functional.cosine_similarity(found, self.wanted).mean())


@dataclass(frozen=True)
class Figures:
    """Bytes of the work, of a plan, of a trial; seconds to start a worker, of a trial, of the head for a trial."""

    work: int
    plan: int
    trial: int
    start: float
    seconds: float
    head: float


def measure(trials: int, samples: int, executors: dict[str, Any]) -> Figures:
    model = network()
    data, evaluate = [torch.randn(16, 3, 16, 16) for _ in range(4)], Agreement(model, samples)
    kept: list[Work] = []
    by_sensitivity = ranking.by_sensitivity

    def keep(work: Work, batches: Any, plan: Any) -> Any:
        kept.append(work)
        return by_sensitivity(work, batches, plan)

    ranking.by_sensitivity = keep
    spent = {}
    for name, executor in executors.items():
        begin = time.perf_counter()
        result = tune(model, data, evaluate, strategy="random", max_trials=trials, executor=executor)
        spent[name] = time.perf_counter() - begin
        each = sum(trial.seconds for trial in result.trials) / len(result.trials)
        print(f"{name:12} {spent[name]:6.1f} s for {trials} trials, {each:.2f} s in each; best {result.best.score}")
    tune(model, data, evaluate, max_trials=4)
    ranking.by_sensitivity = by_sensitivity
    work, trial = kept[0], result.trials[-1]
    begin = time.process_time()  # of this process alone: others may be busy
    content = pickle.dumps(work)
    pickle.loads(content)
    start = time.process_time() - begin
    begin = time.process_time()
    work.run(trial.plan)
    each = time.process_time() - begin
    return Figures(
        work=len(content),
        plan=len(pickle.dumps(trial.plan)),
        trial=len(pickle.dumps(trial)),
        start=start,
        seconds=each,
        head=_head(trial),
    )


def _head(trial: fq.Trial) -> float:
    """What the head does for a trial beside waiting: pickle a plan, read a trial, write a line to the disk."""
    import tempfile

    from fxquant.tuning.journal import Journal

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(folder, {})
        begin = time.process_time()
        for _ in range(200):
            pickle.loads(pickle.dumps(trial))
            journal.add({"kind": "trial", **trial.to_json()})
        return (time.process_time() - begin) / 200


def simulate(figures: Figures, workers: int, trials: int, seconds: float, generation: int) -> float:
    """Seconds of a search: the work goes to the nodes one after the other, the head serves one trial at a time."""
    ready = [(1 + index // PER_NODE) * figures.work / NETWORK + figures.start for index in range(workers)]
    heapq.heapify(ready)
    now = head = 0.0
    for first in range(0, trials, generation):
        ends = []
        for _ in range(min(generation, trials - first)):
            begin = max(heapq.heappop(ready), head, now)
            head = begin + figures.head if begin <= head else max(head, begin) + figures.head
            end = head + seconds
            heapq.heappush(ready, end)
            ends.append(end)
        now = max(ends)
    return now


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--ray", action="store_true")
    given = parser.parse_args()
    executors: dict[str, Any] = {"one process": None, "2 processes": fq.Processes(workers=2)}
    if given.ray:
        executors["Ray, 2"] = fq.Ray(workers=2)
    figures = measure(given.trials, given.samples, executors)
    print(figures)
    for name, generation in (("random, 1,024 at a time", 1024), ("bayesian, 4 at a time", 4)):
        for seconds in (figures.seconds, 60.0):
            alone = simulate(figures, 1, 4096, seconds, generation)
            row = {w: alone / simulate(figures, w, 4096, seconds, generation) for w in (2, 4, 16, 64, 256, 1000)}
            print(f"{name}, {seconds:.2f} s each: " + ", ".join(f"{w}: {s:.0f}x" for w, s in row.items()))


if __name__ == "__main__":
    main()
