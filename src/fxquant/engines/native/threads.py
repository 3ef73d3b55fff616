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
        self.go, self.done = _thread.allocate_lock(), _thread.allocate_lock()
        self.go.acquire()
        self.done.acquire()
        threading.Thread(target=self._work, name=f"fxquant-{index}", daemon=True).start()

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

    def run(self, job: Job, count: int) -> bool:
        """Run job(index, count) on `count` threads, this one among them; False if they are busy, and nothing ran."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            while len(self._workers) < count - 1:
                self._workers.append(_Worker(len(self._workers) + 1))
            used = self._workers[: count - 1]
            for worker in used:
                worker.job, worker.count = job, count
                worker.go.release()
            try:
                job(0, count)
            finally:
                for worker in used:
                    worker.done.acquire()
        finally:
            self._lock.release()
        return True


@functools.lru_cache(maxsize=1)
def _of_process(process: int) -> Workers:
    return Workers()


def workers() -> Workers:
    """Those of this process: threads do not go through a fork."""
    return _of_process(os.getpid())
