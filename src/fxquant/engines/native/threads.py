"""Threads that run machine code together with the thread that asks for it.

They never come back to Python: crew.py tells how they find their work. A thread of Python that finds them busy with the
work of another does its own alone.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
from collections.abc import Sequence

from fxquant.engines.native import crew
from fxquant.engines.native.compiler import Library
from fxquant.engines.native.parts import aligned

_MOST = 256  # threads
_PATIENCE = 1.0  # seconds, at the end of the process
_WORD = ctypes.sizeof(ctypes.c_int64)
_Serve = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Lead = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
_Dismiss = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class Job:
    """A segment for some samples: `full` of them are done by one thread each, the others by all threads together.

    `functions` are the addresses of what does each, `fixed` those of what both are given. The first arena
    is for samples that are done together. What is `alive` stays so until no thread looks at it.
    """

    def __init__(
        self,
        functions: tuple[int, int],
        fixed: tuple[int, int, int],
        arenas: Sequence[int],
        samples: tuple[int, int, int],
        counts: int,
        alive: object,
    ) -> None:
        full, batch, self.threads = samples
        self._words = (ctypes.c_int64 * (crew.ARENAS + 1 + self.threads))()
        self._words[: crew.COUNTS + 1] = [*functions, *fixed, full, batch, self.threads, counts]
        self._words[crew.ARENAS : crew.ARENAS + len(arenas)] = [*arenas]
        self._alive = alive
        self.address = ctypes.addressof(self._words)


class Workers:
    """The threads of one process, as many as were ever asked for at once. `library` has their functions."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._serve = _Serve(library.address("serve"))
        self._lead = _Lead(library.address("lead"))
        self._mails = aligned(_MOST * crew.MAIL_BYTES)
        self._mails[:] = 0
        self._words = self._mails.view("int64").reshape(_MOST, -1)
        self._threads: list[threading.Thread] = []
        self._jobs: list[Job | None] = []  # of each thread, the last
        self._lock = threading.Lock()
        atexit.register(self._dismiss)

    def run(self, job: Job) -> bool:
        """Do a job on as many threads as it says, this one among them; False if they are busy, and nothing ran.

        A thread that is not back from an earlier job, as it has no core, is left out.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            helpers = min(job.threads - 1, _MOST)
            while len(self._threads) < helpers:
                self._add()
            self._lead(self._mails.ctypes.data, helpers, job.address)
            for index in range(helpers):
                if self._words[index, crew.JOB // _WORD] == job.address:
                    self._jobs[index] = job  # it may look at that until it has another
        finally:
            self._lock.release()
        return True

    def _add(self) -> None:
        index = len(self._threads)
        mail = self._mails.ctypes.data + index * crew.MAIL_BYTES
        thread = threading.Thread(target=self._serve, args=(mail,), name=f"fxquant-{1 + index}", daemon=True)
        self._threads.append(thread)
        self._jobs.append(None)
        thread.start()

    def _dismiss(self) -> None:
        """Let all threads come to an end, before the memory goes that they look at."""
        _Dismiss(self._library.address("dismiss"))(self._mails.ctypes.data, len(self._threads))
        for thread in self._threads:
            thread.join(_PATIENCE)


@functools.lru_cache(maxsize=1)
def _of_process(process: int) -> list[Workers]:
    return []


def workers(library: Library) -> Workers:
    """Return those of this process: threads do not go through a fork. The first who asks gives them their functions."""
    found = _of_process(os.getpid())
    if not found:
        found.append(Workers(library))
    return found[0]
