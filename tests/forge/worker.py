"""Load and call forged files, one after the other, and tell of each what happened. Run by run.py.

Input: lines of JSON [path, base, engines]. Output: a line "start <path>" and one of JSON for each.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import fxquant as fq
from forge.files import inputs, meaning

SECONDS, MORE_MEMORY = 60, 4 * 2**30  # of the processor, and what comes on top of the memory of a worker
_SEEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "urllib.", "ftplib.", "webbrowser.")
_CALM = ("os.listdir", "os.scandir", "os.walk", "os.mkdir", "os.remove", "os.rmdir", "ctypes.", "os.add_dll_directory")


class Watch:
    """What Python does meanwhile that a file has no business with."""

    def __init__(self) -> None:
        self.on = False
        self.temporary = tempfile.gettempdir()  # asking for it opens files, too
        self.events: list[str] = []
        roots = {sys.prefix, sys.base_prefix, *(sysconfig.get_paths().values()), *map(str, sys.path)}
        self.known = (
            *(str(Path(root).resolve()) for root in roots if root),
            "/proc",
            "/sys",
            "/dev",
            "/etc",
            "/usr",
            "/lib",
        )
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode = str(args[0]), str(args[1] or "r")
            written = any(letter in mode for letter in "wax+")
            inside = path.startswith((self.temporary, "<")) or (not written and path.startswith(self.known))
            if not inside and not path.isdigit():
                self.events.append(f"open {path} {mode}")
        elif event.startswith(_SEEN) and not event.startswith(_CALM):
            if event.startswith("os.") and args and str(args[0]).startswith(self.temporary):
                return  # the native engine keeps its code there
            self.events.append(f"{event} {args!r}"[:200])


def state() -> tuple[Any, ...]:
    """What a file must leave alone."""
    return (
        *(torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed(), torch.get_num_threads()),
        *(torch.are_deterministic_algorithms_enabled(), torch.get_default_device(), torch.is_autocast_enabled("cpu")),
        *(sys.getrecursionlimit(), os.getcwd(), len(os.environ)),
    )


def attempt(path: str, base: str, engine: str) -> str:
    """What becomes of a file on an engine: "refused", "ran", or what went wrong."""
    try:
        model = fq.load(path, engine=engine)
    except fq.ArchiveError:
        return "refused"
    except BaseException as error:
        return f"load raised {type(error).__name__}: {error}"[:300]
    try:
        with torch.no_grad():
            for _ in range(2):  # what comes again may take another way
                model(inputs(base))
    except fq.ArchiveError:
        return "refused at the call"
    except BaseException as error:
        return f"call raised {type(error).__name__}: {error}"[:300]
    return "ran"


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    folder, engines = Path(sys.argv[1]), sys.argv[2].split(",")
    watch = Watch()
    for engine in engines:  # what they import and open once is not the file's doing
        for base in ("conv", "linear", "tokens", "sizes"):
            outcome = attempt(str(folder / f"{base}.fq"), base, engine)
            if outcome != "ran":
                raise SystemExit(f"{base} on {engine}: {outcome}")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_MEMORY, size + MORE_MEMORY))
    print("ready", flush=True)
    tried: set[str] = set()
    for line in sys.stdin:
        path, base = json.loads(line)
        print(f"start {path}", flush=True)
        before, found = state(), {}
        watch.events.clear()
        for engine in engines:
            if engine != "reference" and found.get("reference") == "ran":
                said = f"{engine} {meaning(Path(path))}"
                if said in tried:
                    found[engine] = "the same as one before"
                    continue
                tried.add(said)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # it ends the process
            signal.alarm(10 * SECONDS)
            watch.on = True
            found[engine] = attempt(path, base, engine)
            watch.on = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            if found[engine] == "refused" and engine == "reference":
                break  # by the checks that all engines share
        if state() != before:
            found["state"] = f"changed from {before} to {state()}"
        if watch.events:
            found["events"] = "; ".join(watch.events[:3])
        print(json.dumps(found), flush=True)


main()
