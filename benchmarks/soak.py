"""Calls without end: random sizes, several threads, forked and spawned processes. Bit-equal, and memory stays flat.

python benchmarks/soak.py --calls 20000 --threads 8
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fxquant as fq

_SIZES = [(batch, side) for batch in (1, 2, 3, 5, 8) for side in (8, 12, 16, 20)]
_MOST_GROWTH = 24.0  # MB, from the first tenth of the calls to the end


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.side = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x).relu()
        x = self.pool(x + self.side(x))
        return self.head(x.mean((2, 3))), x


def resident_mb() -> float:
    """Memory of this process, from /proc."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


def inputs() -> dict[tuple[int, int], Tensor]:
    """One input of each size, the same in every process."""
    made = torch.Generator().manual_seed(0)
    return {(batch, side): torch.randn(batch, 3, side, side, generator=made) for batch, side in _SIZES}


def soak(model: nn.Module, calls: int, threads: int, expected: dict[Any, Any]) -> tuple[int, float]:
    """(wrong results, growth of memory in MB) of random calls from several threads."""
    given, wrong, marks = inputs(), [], []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for count in range(calls // threads):
            size = choose.choice(_SIZES)
            with torch.no_grad():
                found = model(given[size])
            if not all(map(torch.equal, found, expected[size])):
                wrong.append(size)
            if seed == 0 and count in (calls // threads // 10, calls // threads - 1):
                gc.collect()
                marks.append(resident_mb())

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return len(wrong), marks[-1] - marks[0]


def child(data: bytes, expected: dict[Any, Any], calls: int, results: Any) -> None:
    """What another process does with the model."""
    torch.set_num_threads(1)
    results.put(soak(pickle.loads(data), calls, 2, expected))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--engines", default="onednn,native,onnxruntime,openvino")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    given = inputs()
    failed = False
    for engine in asked.engines.split(","):
        try:
            model = fq.quantize(Net().eval(), [given[2, 16]], engine=engine)  # type: ignore[arg-type]
        except fq.errors.ConfigError as error:
            print(f"{engine:12} {error}")
            continue
        with torch.no_grad():
            for _ in range(2):  # native code is made for a size that comes again
                expected = {size: model(x) for size, x in given.items()}
        runs = {"threads": soak(model, asked.calls, asked.threads, expected)}
        for how in ("fork", "spawn"):
            context = multiprocessing.get_context(how)
            results = context.SimpleQueue()
            process = context.Process(target=child, args=(pickle.dumps(model), expected, asked.calls // 10, results))
            process.start()
            runs[how] = results.get()
            process.join()
        for name, (wrong, growth) in runs.items():
            failed |= wrong > 0 or growth > _MOST_GROWTH
            print(f"{engine:12} {name:8} {wrong} wrong, memory {growth:+.1f} MB")
    if failed:
        raise SystemExit("not bit-equal, or memory grows")


if __name__ == "__main__":
    main()
