"""Trials on a Ray cluster. The calibrated model goes to each node once, and each worker reads it there once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fxquant.errors import ConfigError
from fxquant.tuning.executors import RETRIES, Done, TrialError, in_order
from fxquant.tuning.plan import Plan
from fxquant.tuning.trial import Trial, Work


class _Server:
    """The actor: it holds the work, and runs plans."""

    def __init__(self, work: Work, threads: int) -> None:
        torch.set_num_threads(threads)
        self._work = work

    def run(self, plan: Plan) -> Trial:
        return self._work.run(plan)


@dataclass
class Ray:
    """Trials in `workers` actors of one CPU and thread each; `address` is that of a cluster, else one is started here.

    An actor that dies is restarted, and its trial retried.

    Example:
        >>> executor = fq.Ray(workers=4)  # fq.tune(model, loader, evaluate, executor=executor)
    """

    workers: int = 2
    address: str | None = None
    threads: int = 1
    _own: bool = field(default=False, repr=False)
    _store: Any = field(default=None, repr=False)
    _actors: list[Any] = field(default_factory=list, repr=False)
    _free: list[Any] = field(default_factory=list, repr=False)
    _running: dict[Any, tuple[Plan, Any]] = field(default_factory=dict, repr=False)

    def start(self, work: Work) -> None:
        """Put the work into the store of the cluster, and start the actors."""
        try:
            import ray
        except ImportError:
            raise ConfigError("this executor needs Ray. Run: pip install 'fxquant[ray]'") from None
        if not ray.is_initialized():
            self._own = True
            local: dict[str, Any] = {"num_cpus": self.workers, "include_dashboard": False, "log_to_driver": False}
            ray.init(address=self.address) if self.address else ray.init(**local)
        self._store = ray.put(work)  # held, since an actor that is restarted reads it again
        actor = ray.remote(_Server).options(
            num_cpus=self.threads, max_restarts=RETRIES * self.workers, max_task_retries=RETRIES
        )
        self._actors = [actor.remote(self._store, self.threads) for _ in range(self.workers)]
        self._free = list(self._actors)

    def run(self, plans: Sequence[Plan], done: Done) -> Iterator[Trial]:
        return in_order(self, plans, done)

    def has_room(self) -> bool:
        return bool(self._free)

    def running(self) -> Collection[str]:
        return [plan.key for plan, _ in self._running.values()]

    def submit(self, plan: Plan) -> None:
        actor = self._free.pop()
        self._running[actor.run.remote(plan)] = (plan, actor)

    def collect(self) -> list[Trial]:
        import ray

        finished, _ = ray.wait(list(self._running), num_returns=1)
        trials = []
        for each in finished:
            plan, actor = self._running.pop(each)
            self._free.append(actor)
            try:
                trials.append(ray.get(each))
            except ray.exceptions.RayTaskError as error:
                raise TrialError(f"evaluate failed in a worker: {error.cause!r}") from error
            except ray.exceptions.RayActorError as error:
                reason = f"its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}"
                trials.append(Trial(plan=plan, error=reason))
        return trials

    def close(self) -> None:
        if not (self._actors or self._own):  # it did not start, for want of Ray perhaps
            return
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._free, self._running, self._store = [], [], {}, None
        if self._own:
            ray.shutdown()
            self._own = False
