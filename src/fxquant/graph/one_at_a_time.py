"""Locks: one that captures hold, and those of objects that threads, and forks, share.

torch.fx and torch.export put functions of their own on `nn.Module` while they trace. Two traces that overlap in threads
would each take the other's for torch's, and put it back for good.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

CAPTURING = threading.RLock()  # a capture may ask for another, of a part


class OwnLock:
    """A lock that a thread may take again. A forked process has its own, as it has not the thread that held it."""

    def __init__(self) -> None:
        self._locks = {os.getpid(): threading.RLock()}

    def __enter__(self) -> None:
        # asked for in one step, so that all threads find the same one
        self._locks.setdefault(os.getpid(), threading.RLock()).acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks[os.getpid()].release()
