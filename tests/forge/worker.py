"""Load and call forged files, one after the other, and tell of each what happened. Run by run.py.

Input: lines of JSON [name, base, path, engines]. Output: a line of JSON for each.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
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
from forge.files import inputs
from forge.once import Once, share_runtimes
from fxquant import api
from fxquant.engines import timing

SECONDS, MORE_MEMORY = 60, 4 * 2**30  # of the processor, and what comes on top of the memory of a worker
_SEEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "urllib.", "ftplib.", "webbrowser.")
_CALM = ("os.listdir", "os.scandir", "os.walk", "os.mkdir", "os.remove", "os.rmdir", "ctypes.", "os.add_dll_directory")
_KEPT = re.compile(r"[0-9a-f]{64}|[0-9a-f]{16}\.part")  # code that the native engine keeps, named within its directory


class Watch:
    """What Python does meanwhile that a file has no business with."""

    def __init__(self) -> None:
        self.on = False
        self.temporary = tempfile.gettempdir()  # asking for it opens files, too
        self.events: list[str] = []
        roots = {sys.prefix, sys.base_prefix, *(sysconfig.get_paths().values()), *map(str, sys.path)}
        self.known = (
            *(str(path) for root in roots if root for path in (Path(root).absolute(), Path(root).resolve())),
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
            if not inside and not path.isdigit() and not self.is_kept(path):
                self.events.append(f"open {path} {mode}")
        elif event.startswith(_SEEN) and not event.startswith(_CALM):
            if event.startswith("os.") and args and self.is_kept(str(args[0])):
                return
            self.events.append(f"{event} {args!r}"[:200])

    def is_kept(self, path: str) -> bool:
        """Tell whether it is where the native engine keeps its code."""
        return path.startswith(self.temporary) or _KEPT.fullmatch(path) is not None


def state() -> tuple[Any, ...]:
    """What a file must leave alone."""
    return (
        *(torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed(), torch.get_num_threads()),
        *(torch.are_deterministic_algorithms_enabled(), torch.get_default_device(), torch.is_autocast_enabled("cpu")),
        *(sys.getrecursionlimit(), os.getcwd(), len(os.environ)),
    )


READ = Once(api.read_archive, lambda path, float_model: str(path), copy.deepcopy)


def hurry() -> None:
    """Do once what engines share, and measure for no longer than it takes to choose.

    The checks of a file come before its engine, runtimes are made from one export, and "auto" makes all engines again.
    """
    api.read_archive = READ  # type: ignore[assignment]
    share_runtimes()
    timing._PAUSE = timing._TURN = 0.0
    timing.time_interleaved.__kwdefaults__["seconds"] = 0.0


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
    hurry()
    for engine in engines:  # what they import and open once is not the file's doing
        for base in ("conv", "linear", "tokens", "sizes"):
            READ.known.clear()
            outcome = attempt(str(folder / f"{base}.fq"), base, engine)
            if outcome != "ran":
                raise SystemExit(f"{base} on {engine}: {outcome}")
    size = address_space()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_MEMORY, size + MORE_MEMORY))
    print("ready", flush=True)
    last = ""
    for line in sys.stdin:
        name, base, path, asked = json.loads(line)
        if name != last:
            READ.known.clear()
        last = name
        print(json.dumps(outcomes(watch, base, path, asked)), flush=True)
        if address_space() > size + MORE_MEMORY / 2:
            break  # torch keeps some of what it exports; the next file gets a new process


def outcomes(watch: Watch, base: str, path: str, engines: list[str]) -> dict[str, str]:
    """What becomes of a file on each engine, and what else happened meanwhile."""
    before, found = state(), {}
    watch.events.clear()
    for engine in engines:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # it ends the process
        watch.on = True
        found[engine] = attempt(path, base, engine)
        watch.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
    if state() != before:
        found["state"] = f"changed from {before} to {state()}"
    if watch.events:
        found["events"] = "; ".join(watch.events[:3])
    return found


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


main()
