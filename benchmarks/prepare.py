"""CPU time of `prepare_fx`, against one float pass on the same inputs, on one thread.

The models are those of the tests' zoo, and architectures that nobody here wrote (`_zoo.py`). Both times are the least
of a few. The bar: prepare takes at most 5 float passes plus a second.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import fxquant as fq
from _zoo import Built, build, entries

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from zoo import ZOO

PASSES, SECONDS = 5, 1.0
COUNT = 12  # architectures of others, if none are named


def cpu_time(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of a call, after one that does not count."""
    work()
    least = math.inf
    for _ in range(repeats):
        start = time.process_time()
        work()
        least = min(least, time.process_time() - start)
    return least


def from_zoo(name: str) -> Built:
    entry = ZOO[name]
    return entry.build(), entry.inputs(), entry.kwargs()


def from_file(place: str) -> Built:
    """A model of a file, `net.py:Net:1,3,224,224`, on a random tensor of that size."""
    path, name, size = place.split(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)().eval(), (torch.randn(*map(int, size.split(","))),), {}


def chosen(names: list[str]) -> Iterator[tuple[str, Built]]:
    every = list(entries())
    spread = [every[i * len(every) // COUNT] for i in range(COUNT)]
    for name in names or [*ZOO, *spread]:
        yield name, from_zoo(name) if name in ZOO else from_file(name) if ":" in name else build(name)


def times(built: Built, repeats: int) -> tuple[float, float]:
    """(a float pass, prepare)."""
    model, args, kwargs = built
    mapping = fq.get_default_qconfig_mapping("x86")
    with torch.no_grad():
        one_pass = cpu_time(lambda: model(*args, **kwargs), 5)
    return one_pass, cpu_time(lambda: fq.prepare_fx(model, mapping, args, example_kwargs=kwargs), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of architectures, or file.py:Class:1,3,224,224")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("model", "float pass, ms", "prepare, ms", "ratio", "of the bar")
    over = 0
    for name, built in chosen(options.names):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one_pass, prepare = times(built, options.repeats)
        share = prepare / (PASSES * one_pass + SECONDS)
        over += share > 1
        table.add_row(
            name, f"{1e3 * one_pass:.1f}", f"{1e3 * prepare:.0f}", f"{prepare / one_pass:.1f}", f"{share:.0%}"
        )
    Console().print(table)
    sys.exit(over)


if __name__ == "__main__":
    main()
