"""Forge files and try them in processes of their own: `python tests/forge/run.py --mutations 20000`.

Nothing but an ArchiveError, or a model that runs, may come of a file: no crash, hang, command, file, socket, change of
global state, or other error.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from forge.crafted import crafted  # noqa: E402
from forge.files import File, forged, read, write, write_bases  # noqa: E402
from forge.mutate import mutate  # noqa: E402

Case = tuple[str, str, Path]  # name, base, path
SAME = ("reference", "onednn", "native")  # take the same files; a runtime may say that it cannot take one
FINE = ("refused", "refused at the call", "ran", "the same as one before")


def crafted_cases(folder: Path, bases: dict[str, File]) -> Iterator[Case]:
    """The crafted files, written."""
    for index, (name, (base, change)) in enumerate(crafted().items()):
        path = folder / f"crafted_{index}.fq"
        write(forged(bases[base], change), path)
        yield name, base, path


def mutated_cases(folder: Path, bases: dict[str, File], count: int, seed: int, first: int = 0) -> Iterator[Case]:
    """Random changes, written; the same for the same seed."""
    names = sorted(bases)
    for index in range(first, count):
        rng = random.Random(f"{seed} {index}")
        base = names[index % len(names)]
        path = folder / "mutated.fq"

        def change(file: File, rng: random.Random = rng) -> None:
            mutate(file, rng)

        write(forged(bases[base], change), path)
        yield f"mutation {seed} {index}", base, path


def ask(process: subprocess.Popen[str], path: Path, base: str) -> str:
    """What a worker says of a file; nothing if it has ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps([str(path), base]) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return [process.stdout.readline() for _ in range(2)][1]


class Worker:
    """A process that tries files; a new one is started when it dies."""

    def __init__(self, folder: Path, engines: list[str]) -> None:
        self.folder, self.engines = folder, engines
        self.process: subprocess.Popen[str] | None = None

    def attempt(self, base: str, path: Path) -> dict[str, str]:
        """What happened, by engine."""
        process = self.process or self._start()
        answer = ask(process, path, base)
        if not answer and process.wait() == 0:  # it had grown, and ended after the file before
            process = self._start()
            answer = ask(process, path, base)
        if answer:
            found: dict[str, str] = json.loads(answer)
            return found
        code = process.wait()
        self.process = None
        return {
            "process": f"hang: no answer in time (signal {-code})"
            if code in (-signal.SIGALRM, -signal.SIGPROF)
            else f"crash: exit code {code}"
        }

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-m", "forge.worker", str(self.folder), ",".join(self.engines)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        home = {**os.environ, "HOME": str(self.folder)}  # where the native engine keeps its code
        self.process = subprocess.Popen(command, text=True, cwd=HERE.parent, env=home, **pipes)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the worker did not start: the base files do not run on these engines.")
        return self.process

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


def run(cases: Iterator[Case], folder: Path, engines: list[str]) -> tuple[collections.Counter[str], dict[str, Any]]:
    """How often each outcome came, and the cases in which something else did."""
    counts: collections.Counter[str] = collections.Counter()
    faults: dict[str, Any] = {}
    worker = Worker(folder, engines)
    for name, base, path in cases:
        found = worker.attempt(base, path)
        counts.update(f"{engine}: {outcome}" for engine, outcome in found.items() if outcome in FINE)
        counts["files"] += 1
        if counts["files"] % 1000 == 0:
            print(f"{dict(counts)}; {len(faults)} faults", flush=True)
        wrong = {key: outcome for key, outcome in found.items() if outcome not in FINE}
        runs = {found[engine] == "ran" for engine in SAME if found.get(engine) in FINE[:3]}
        if wrong or len(runs) > 1:
            wrong = wrong or found  # an engine takes what another refuses
            faults[name] = wrong
            print(f"FAULT {name} ({base}): {wrong}", flush=True)
    worker.close()
    return counts, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the mutation to begin with")
    parser.add_argument(
        "--engines", default="reference,onednn,native,onnxruntime,openvino,auto", help="for crafted files"
    )
    parser.add_argument("--mutation-engines", default="reference,onednn,native,onnxruntime,openvino")
    parser.add_argument("--skip-crafted", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, failed = Path(name), 0
        write_bases(folder)
        bases = {path.stem: read(path) for path in sorted(folder.glob("*.fq"))}
        rounds = [("crafted", crafted_cases(folder, bases), given.engines)] * (not given.skip_crafted)
        mutated = mutated_cases(folder, bases, given.mutations, given.seed, given.first)
        rounds.append(("mutated", mutated, given.mutation_engines))
        for title, cases, engines in rounds:
            start = time.perf_counter()
            counts, faults = run(cases, folder, engines.split(","))
            failed += len(faults)
            print(f"{title}: {dict(counts)}; {len(faults)} faults; {time.perf_counter() - start:.0f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
