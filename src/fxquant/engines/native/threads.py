"""Threads that call machine code together with the thread that asks for it.

They sleep until there is work. A thread of Python that finds them busy with the work of another does its own alone.
"""

from __future__ import annotations

import _thread
import functools
import os
import threading
from collections.abc import Callable

Job = Callable[[int, int], None]  # which thread, of how many


class _Worker:
    """One thread. Locks are its signals: they are the fastest that Python has."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.job: Job | None = None
        self.count = 0
        self.waits = False  # whether nobody has waited for the end of its last job
        self.go, self.done = _thread.allocate_lock(), _thread.allocate_lock()
        self.go.acquire()
        self.done.acquire()
        threading.Thread(target=self._work, name=f"fxquant-{index}", daemon=True).start()

    def finish(self) -> None:
        """Wait for the end of its job, if it has one."""
        if self.waits:
            self.done.acquire()
            self.waits = False

    def _work(self) -> None:
        while True:
            self.go.acquire()
            assert self.job is not None
            self.job(self.index, self.count)
            self.job = None
            self.done.release()


class Workers:
    """The threads of one process, as many as were ever asked for at once."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def run(self, job: Job, count: int, joined: bool = False) -> bool:
        """Run job(index, count) on `count` threads, this one among them; False if they are busy, and nothing ran.

        The work of a `joined` job is done on all threads once it is done on one: they wait for each other at its end.
        So only the next job waits until they are back in Python: to be woken takes longer than to look at a count.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            while len(self._workers) < count - 1:
                self._workers.append(_Worker(len(self._workers) + 1))
            used = self._workers[: count - 1]
            for worker in used:
                worker.finish()
                worker.job, worker.count, worker.waits = job, count, True
                worker.go.release()
            try:
                job(0, count)
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
