"""Where trials run. An executor takes plans and gives their trials in the order of the plans, whoever ends first.

A search takes the trials in that order and may stop taking them at any point, so its result does not depend on how many
run at once. `done` is called with each trial as soon as it is there, also with those that ran ahead.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from fxquant.errors import ConfigError, FxQuantError
from fxquant.tuning.plan import Plan
from fxquant.tuning.trial import Trial, Work

Done = Callable[[Trial], None]
RETRIES = 2


class Executor(Protocol):
    """Runs trials; `start` gives it the work, once, and `close` ends what it started."""

    def start(self, work: Work) -> None: ...

    def run(self, plans: Sequence[Plan], done: Done) -> Iterator[Trial]: ...

    def close(self) -> None: ...


class InProcess:
    """One trial after the other, in this process."""

    def start(self, work: Work) -> None:
        self._work = work

    def run(self, plans: Sequence[Plan], done: Done) -> Iterator[Trial]:
        for plan in plans:
            trial = self._work.run(plan)
            done(trial)
            yield trial

    def close(self) -> None:
        pass


class Slots(Protocol):
    """Places where trials run, as `in_order` needs them."""

    def has_room(self) -> bool: ...

    def submit(self, plan: Plan) -> None: ...

    def running(self) -> Collection[str]: ...

    def collect(self) -> list[Trial]: ...


def in_order(slots: Slots, plans: Sequence[Plan], done: Done) -> Iterator[Trial]:
    """Run plans wherever there is room. Trials of an earlier call, which nobody waited for, are noted as well."""
    waiting, ready = deque(plans), dict[str, Trial]()
    for plan in plans:
        while plan.key not in ready:
            while waiting and slots.has_room():
                each = waiting.popleft()
                if each.key not in ready and each.key not in slots.running():
                    slots.submit(each)
            for trial in slots.collect():
                ready[trial.plan.key] = trial
                done(trial)
        yield ready[plan.key]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    plan: Plan
    tries: int


@dataclass
class Processes:
    """Trials in processes of this machine, one thread each. A process that dies is replaced, and its trial retried.

    With "fork" workers have the model and the data without a copy. With "spawn" all that `evaluate` uses has to be
    picklable, and the script has to have an `if __name__ == "__main__"`.

    Example:
        >>> executor = fq.Processes(workers=4)  # fq.tune(model, loader, evaluate, executor=executor)
    """

    workers: int = 2
    start_method: str = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    threads: int = 1
    _work: Work | None = field(default=None, repr=False)
    _idle: list[tuple[Any, Connection]] = field(default_factory=list, repr=False)
    _busy: list[_Worker] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if type(getattr(self, name)) is not int:
                raise ConfigError(f"Processes({name}={getattr(self, name)!r:.80}): expected a whole number.")
        if self.workers < 1 or self.threads < 1:
            raise ConfigError(f"Processes(workers={self.workers}, threads={self.threads}): expected 1 or more of each.")
        if self.start_method not in multiprocessing.get_all_start_methods():
            raise ConfigError(f"Processes(start_method={self.start_method!r}): this system has no such method.")
        if self.start_method == "fork" and self.threads > 1:
            raise ConfigError("Processes(threads=...): more than one thread needs start_method='spawn'.")

    def start(self, work: Work) -> None:
        self._work = work

    def run(self, plans: Sequence[Plan], done: Done) -> Iterator[Trial]:
        return in_order(self, plans, done)

    def has_room(self) -> bool:
        return len(self._busy) < self.workers

    def running(self) -> Collection[str]:
        return [worker.plan.key for worker in self._busy]

    def submit(self, plan: Plan, tries: int = 1) -> None:
        process, pipe = self._idle.pop() if self._idle else self._new_process()
        with suppress(OSError):  # if it is dead, its sentinel says so
            pipe.send(plan)
        self._busy.append(_Worker(process, pipe, plan, tries))

    def _new_process(self) -> tuple[BaseProcess, Connection]:
        context: Any = multiprocessing.get_context(self.start_method)
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._work, theirs, self.threads))
        try:
            process.start()
        except (AttributeError, TypeError, ValueError, ImportError, pickle.PicklingError) as error:
            raise ConfigError(
                f"a worker cannot be started with {self.start_method!r}: {error}. Give an evaluate and a model of "
                "importable modules, or use start_method='fork'."
            ) from error
        theirs.close()
        return process, ours

    def collect(self) -> list[Trial]:
        found = wait([each for worker in self._busy for each in (worker.pipe, worker.process.sentinel)])
        ended = [worker for worker in self._busy if worker.pipe in found or worker.process.sentinel in found]
        trials = []
        for worker in ended:
            self._busy.remove(worker)
            answer = _receive(worker)
            if answer is None and worker.tries <= RETRIES:
                self.submit(worker.plan, worker.tries + 1)
                continue
            if answer is not None:
                self._idle.append((worker.process, worker.pipe))
            if isinstance(answer, BaseException):
                raise answer
            trials.append(answer or Trial(plan=worker.plan, error=f"its worker died {worker.tries} times"))
        return trials

    def close(self) -> None:
        for process, pipe in [*self._idle, *((worker.process, worker.pipe) for worker in self._busy)]:
            process.kill()
            process.join()
            pipe.close()
        self._idle.clear()
        self._busy.clear()


def _receive(worker: _Worker) -> Trial | BaseException | None:
    """Return the answer of a worker; None if it died without one."""
    with suppress(EOFError, OSError):
        if worker.pipe.poll():
            answer: Trial | BaseException = worker.pipe.recv()
            return answer
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()
    return None


def _serve(work: Work, pipe: Connection, threads: int) -> None:
    """Live as a worker: plans in, trials out, until the process that started it is gone."""
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while pipe in wait([pipe, parent.sentinel]):
            plan = pipe.recv()
            try:
                answer: Any = work.run(plan)
            except Exception as error:
                answer = TrialError(f"evaluate failed in a worker: {type(error).__name__}: {error}")
            pipe.send(answer)


class TrialError(FxQuantError, RuntimeError):
    """The user's `evaluate` raised in a worker."""
