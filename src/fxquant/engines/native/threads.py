"""Threads that call machine code together with the thread that asks for it.

They sleep until there is work, and take what is left of it: whoever asks does not wait for them to come. A thread of
Python that finds them busy with the work of another does its own alone.
"""

from __future__ import annotations

import _thread
import functools
import os
import threading
from collections.abc import Callable

_MOMENT = 1e-4  # seconds
Job = Callable[[int], None]  # which thread


class _Worker:
    """One thread. Locks are its signals: they are the fastest that Python has."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.job: Job | None = None
        self.waits = False  # whether nobody has waited for the end of its last job
        self.late = False  # whether it was not back when it was last looked for
        self.go, self.done = _thread.allocate_lock(), _thread.allocate_lock()
        self.go.acquire()
        self.done.acquire()
        threading.Thread(target=self._work, name=f"fxquant-{index}", daemon=True).start()

    def finish(self) -> None:
        """Wait for the end of its job, if it has one."""
        if self.waits:
            self.done.acquire()
            self.waits = False

    def is_back(self) -> bool:
        """Tell whether it is done with its job. It needs Python for that, so it is given a moment, but once only."""
        if self.waits:
            self.waits = not self.done.acquire(timeout=0 if self.late else _MOMENT)
            self.late = self.waits
        return not self.waits

    def _work(self) -> None:
        while True:
            self.go.acquire()
            assert self.job is not None
            self.job(self.index)
            self.job = None
            self.done.release()


class Workers:
    """The threads of one process, as many as were ever asked for at once."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def run(self, job: Job, count: int, joined: bool = False) -> bool:
        """Run job(index) on up to `count` threads, this one among them; False if they are busy, and nothing ran.

        A thread that is not back from an earlier job, as it has no core, is left out. The work of a `joined` job is
        done once it is done on one thread: nobody waits for the others to come back.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            while len(self._workers) < count - 1:
                self._workers.append(_Worker(len(self._workers) + 1))
            used = [worker for worker in self._workers[: count - 1] if worker.is_back()]
            for worker in used:
                worker.job, worker.waits = job, True
                worker.go.release()
            try:
                job(0)
            finally:
                for worker in used if not joined else ():
                    worker.finish()
        finally:
            self._lock.release()
        return True


@functools.lru_cache(maxsize=1)
def _of_process(process: int) -> Workers:
    return Workers()


def workers() -> Workers:
    """Return those of this process: threads do not go through a fork."""
    return _of_process(os.getpid())
