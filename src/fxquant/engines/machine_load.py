"""How much of the machine other processes take while something is timed.

    others = (time that all CPUs were busy - CPU time of this process and its children) / (wall time * CPUs)

Read from /proc/stat: None where there is none. Times from a busy machine are too long, and not alike for all: a
call with several threads waits for the last of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

BUSY = 0.2  # the share from which results say so
_STAT = Path("/proc/stat")


def watch_others() -> Callable[[], float | None]:
    """Begin to watch. What is returned gives the share of the CPUs that others had since, from 0 to 1."""
    start = _read()

    def others() -> float | None:
        end = _read()
        if start is None or end is None or end[0] <= start[0]:
            return None
        every, busy, own = (after - before for before, after in zip(start, end, strict=True))
        return min(max(busy - own, 0.0) / every, 1.0)

    return others


def busy_note(others: float | None) -> str:
    """Return a line for a share that makes times wrong; nothing for less."""
    if others is None or others < BUSY:
        return ""
    return f"other processes took {others:.0%} of the CPUs meanwhile: times are too long, and ratios may be off."


def _read() -> tuple[float, float, float] | None:
    """Return CPU seconds: all there were, those that were busy, and those of this process."""
    try:
        fields = [int(each) for each in _STAT.read_text().partition("\n")[0].split()[1:]]
    except (OSError, ValueError):
        return None
    if len(fields) < 5:
        return None
    ticks, used = os.sysconf("SC_CLK_TCK"), os.times()
    # idle, and idle while waiting for a disk; guests, from field 8 on, are in user time already
    idle = sum(fields[3:5])
    every = sum(fields[:8])
    own = time.process_time() + used.children_user + used.children_system
    return every / ticks, (every - idle) / ticks, own
