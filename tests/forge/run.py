"""Forge files and try them in processes of their own: `python tests/forge/run.py --mutations 20000 --record FILE`.

Nothing but an ArchiveError, or a model that runs, may come of a file: no crash, hang, command, file, socket, change of
global state, or other error.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from forge.calls import BASE, random_call  # noqa: E402
from forge.crafted import crafted  # noqa: E402
from forge.files import File, forged, meaning, read, write, write_bases  # noqa: E402
from forge.mutate import mutate  # noqa: E402

Write = Callable[[], Path]
Case = tuple[str, str, Write]  # name, base, what writes the file
SAME = ("reference", "onednn", "native")  # take the same files; a runtime may say that it cannot take one
FINE = ("refused", "refused at the call", "ran", "the same as one before")
PATIENCE, LOOKS = 30.0, 10  # seconds between two looks at a worker, and how many in a row find that it only waits


def crafted_cases(folder: Path, bases: dict[str, File]) -> Iterator[Case]:
    """The crafted files."""
    for index, (name, (base, change)) in enumerate(crafted().items()):
        path = folder / f"crafted_{index}.fq"
        yield name, base, functools.partial(_written, bases[base], change, path)


def mutated_cases(folder: Path, bases: dict[str, File], count: int, seed: int, first: int = 0) -> Iterator[Case]:
    """Random changes; the same for the same seed."""
    names = sorted(bases)
    for index in range(first, count):
        base = names[index % len(names)]
        change = functools.partial(mutate, rng=random.Random(f"{seed} {index}"))
        yield f"mutation {seed} {index}", base, functools.partial(_written, bases[base], change, folder / "mutated.fq")


def called_cases(folder: Path, bases: dict[str, File], count: int, seed: int, first: int = 0) -> Iterator[Case]:
    """Random calls of the words of the language; the same for the same seed."""
    for index in range(first, count):
        change = functools.partial(random_call, rng=random.Random(f"{seed} {index}"))
        yield f"calls {seed} {index}", BASE, functools.partial(_written, bases[BASE], change, folder / "called.fq")


def _written(base: File, change: Callable[[File], None], path: Path) -> Path:
    write(forged(base, change), path)
    return path


class Worker:
    """A process that tries files; a new one is started when it dies."""

    def __init__(self, folder: Path, engines: list[str]) -> None:
        self.folder, self.engines = folder, engines
        self.process: subprocess.Popen[bytes] | None = None

    def attempt(self, name: str, base: str, path: Path, engines: list[str]) -> dict[str, str]:
        """What happened, by engine."""
        process = self.process or self._start()
        answer = _ask(process, [name, base, str(path), engines])
        if not answer and process.wait() == 0:  # it had grown, and ended after the file before
            process = self._start()
            answer = _ask(process, [name, base, str(path), engines])
        if answer:
            found: dict[str, str] = json.loads(answer)
            return found
        code = process.wait()
        self.process = None
        return {
            "process": f"hang: no answer in time (signal {-code})"
            if code in (-signal.SIGKILL, -signal.SIGPROF)
            else f"crash: exit code {code}"
        }

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "forge.worker", str(self.folder), ",".join(self.engines)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        home = {**os.environ, "HOME": str(self.folder)}  # where the native engine keeps its code
        self.process = subprocess.Popen(command, bufsize=0, cwd=HERE.parent, env=home, **pipes)
        if _answer(self.process) != b"ready\n":
            raise SystemExit("the worker did not start: the base files do not run on these engines.")
        return self.process

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


def _ask(process: subprocess.Popen[bytes], question: list[Any]) -> bytes:
    """What a worker says of a file; nothing if it has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
    except BrokenPipeError:
        return b""
    return _answer(process)


def _answer(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of a worker, which is killed if it does nothing but wait.

    A worker limits the time of the processor that a file takes. What this sees are waits without end; a machine that is
    busy or stopped, and has no time for the worker, is none of them.
    """
    assert process.stdout is not None
    line, idle, spent = b"", 0, ""
    while not line.endswith(b"\n"):
        if select.select([process.stdout], [], [], PATIENCE)[0]:
            got = os.read(process.stdout.fileno(), 2**16)
            if not got:
                return b""
            line += got
            continue
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        now = " ".join(fields[11:13])
        idle = idle + 1 if fields[0] in "SD" and now == spent else 0
        spent = now
        if idle >= LOOKS:
            process.kill()
    return line


class Record:
    """What came of each case, in lines of a file, so that a run can be ended and gone on with."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, dict[str, str]] = {}
        self.said: dict[str, str] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            self._take(*json.loads(line))

    def add(self, name: str, said: str, found: dict[str, str]) -> None:
        """Note outcomes of a case, and a digest of what its file means, if it was asked for."""
        self._take(name, said, found)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([name, said, found]) + "\n")

    def _take(self, name: str, said: str, found: dict[str, str]) -> None:
        self.found.setdefault(name, {}).update(found)
        if said:
            self.said[name] = said


def run(
    cases: Iterable[Case], folder: Path, engines: list[str], record: Record | None = None
) -> tuple[collections.Counter[str], dict[str, Any]]:
    """How often each outcome came, and the cases in which something else did.

    The reference comes first: what it refuses at load, all refuse. What another engine makes of a file it also makes
    of others that mean the same, so it is asked once.
    """
    counts: collections.Counter[str] = collections.Counter()
    faults: dict[str, Any] = {}
    record = record or Record(None)
    worker = Worker(folder, engines)
    tried = {
        (engine, record.said[name]) for name, found in record.found.items() if name in record.said for engine in found
    }
    for name, base, write_file in cases:
        found = _outcomes(worker, record, tried, name, base, write_file)
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


def _outcomes(
    worker: Worker, record: Record, tried: set[tuple[str, str]], name: str, base: str, write_file: Write
) -> dict[str, str]:
    """What came of a case on each engine, from the record where it is known."""
    found = record.found.get(name, {})
    rest = [engine for engine in worker.engines if engine not in found]
    if not rest or "process" in found or found.get("reference") == "refused":
        return found
    path = write_file()
    if "reference" in rest:
        record.add(name, "", worker.attempt(name, base, path, ["reference"]))
        rest.remove("reference")
    found = record.found.get(name, {})
    if not rest or "process" in found or found.get("reference") == "refused":
        return found
    said = meaning(path)
    before = {engine: FINE[3] for engine in rest if (engine, said) in tried}
    rest = [engine for engine in rest if engine not in before]
    made = worker.attempt(name, base, path, rest) if rest else {}
    tried.update((engine, said) for engine in rest)
    record.add(name, said, {**before, **made})
    return record.found[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the mutation, or call, to begin with")
    parser.add_argument(
        "--engines", default="reference,onednn,native,onnxruntime,openvino,auto", help="for crafted files"
    )
    parser.add_argument("--mutation-engines", default="reference,onednn,native,onnxruntime,openvino,auto")
    parser.add_argument("--only", default="crafted,mutated,called")
    parser.add_argument("--record", type=Path, help="a file of what came of each case; those in it are not tried again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, failed, record = Path(name), 0, Record(given.record)
        write_bases(folder)
        bases = {path.stem: read(path) for path in sorted(folder.glob("*.fq"))}
        rounds = [("crafted", crafted_cases(folder, bases), given.engines)]
        mutated = mutated_cases(folder, bases, given.mutations, given.seed, given.first)
        rounds.append(("mutated", mutated, given.mutation_engines))
        called = called_cases(folder, bases, given.calls, given.seed, given.first)
        rounds.append(("called", called, given.mutation_engines))
        rounds = [(title, cases, engines) for title, cases, engines in rounds if title in given.only.split(",")]
        for title, cases, engines in rounds:
            start = time.perf_counter()
            counts, faults = run(cases, folder, engines.split(","), record)
            failed += len(faults)
            print(f"{title}: {dict(counts)}; {len(faults)} faults; {time.perf_counter() - start:.0f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
