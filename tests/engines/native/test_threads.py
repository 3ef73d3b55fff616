"""Threads of the native engine: what each does of a job, and when nobody waits for it. Jobs call back into Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("llvmlite")

from fxquant.engines.native.crew import crew
from fxquant.engines.native.libraries import Libraries
from fxquant.engines.native.machine import host
from fxquant.engines.native.program import PROTOTYPE
from fxquant.engines.native.threads import Job, Workers

pytestmark = pytest.mark.skipif(host() is None, reason="this CPU is no machine of the native engine")
Samples = Callable[[int, int, int], None]  # first, last, thread


@pytest.fixture
def workers() -> Iterator[Workers]:
    machine = host()
    assert machine is not None
    made = Workers(Libraries().load(crew(machine), machine))
    yield made
    made._dismiss()
    assert not any(thread.is_alive() for thread in made._threads)


def job(alone: Samples, together: Samples, full: int, batch: int, threads: int) -> Job:
    """A job that calls these."""

    def callback(function: Samples, own: bool) -> Any:
        def call(arena: int | None, *rest: int) -> None:
            first, last, _, thread = rest[3:7]
            function(first, last, (arena or 0) if own else thread)

        return PROTOTYPE(call)

    calls = callback(alone, True), callback(together, False)
    addresses = [ctypes.cast(call, ctypes.c_void_p).value or 0 for call in calls]
    arenas = range(-1, threads) if full else [-1]  # that of a thread is its number
    return Job((addresses[0], addresses[1]), (0, 0, 0), arenas, (full, batch, threads), 0, calls)


def nothing(first: int, last: int, thread: int) -> None:
    pass


@pytest.mark.parametrize(("threads", "full", "batch"), [(2, 6, 6), (2, 6, 7), (2, 0, 1), (3, 9, 11), (1, 4, 4)])
def test_each_sample_is_done(workers: Workers, threads: int, full: int, batch: int) -> None:
    apart: list[int] = []
    shared: list[tuple[int, int]] = []

    def alone(first: int, last: int, _: int) -> None:
        apart.extend(range(first, last))

    def together(first: int, last: int, _: int) -> None:
        shared.append((first, last))

    for _ in range(30):
        apart.clear()
        assert workers.run(job(alone, together, full, batch, threads))
        assert sorted(apart) == list(range(full))
        assert set(shared) == ({(full, batch)} if full < batch else set())


def test_who_leads_waits_for_samples_that_others_do(workers: Workers) -> None:
    def slow(first: int, last: int, thread: int) -> None:
        seen.append(thread)
        if thread:
            threading.Event().wait(0.05)
            ended.append(thread)

    seen: list[int] = []
    ended: list[int] = []
    while not any(seen):  # until there is a thread
        assert workers.run(job(slow, nothing, 4, 4, 2))
        assert len(ended) == sum(seen)


def test_a_thread_that_is_not_back_is_left_out(workers: Workers) -> None:
    there, go = threading.Event(), threading.Event()

    def long(first: int, last: int, thread: int) -> None:
        if thread:
            there.set()
            go.wait()

    seen: list[int] = []
    made = job(nothing, lambda _, __, thread: seen.append(thread), 0, 1, 2)
    while not there.is_set():
        assert workers.run(job(nothing, long, 0, 1, 2))
    assert workers.run(made)
    assert seen == [0]
    go.set()
    while 1 not in seen:  # it is taken again as soon as it is back
        assert workers.run(made) and 0 in seen


def test_whoever_finds_them_busy_works_alone(workers: Workers) -> None:
    found: list[bool] = []
    again = job(nothing, nothing, 0, 1, 2)
    assert workers.run(job(nothing, lambda *_: found.append(workers.run(again)), 0, 1, 1))
    assert found == [False]


def test_a_thread_that_slept_is_woken(workers: Workers) -> None:
    seen: list[int] = []
    made = job(nothing, lambda _, __, thread: seen.append(thread), 0, 1, 2)
    for _ in range(3):
        threading.Event().wait(0.02)  # it looks for work for less than that
        seen.clear()
        while 1 not in seen:
            assert workers.run(made)
