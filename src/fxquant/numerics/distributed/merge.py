"""One state for what watches tensors on all ranks: that of one which saw the data of every rank."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fxquant.numerics.distributed.agree import world_size
from fxquant.numerics.observers.table import Observer, make_observer
from fxquant.numerics.observers.watcher import Watcher

Merged = Observer | Watcher
T = TypeVar("T")


def merge_over_ranks(watchers: Sequence[Merged]) -> None:
    """Merge each watcher with its twins on the other ranks, in the order of the ranks, in one collective.

    Every rank has to call this with the same watchers in the same order.
    """
    if world_size() == 1 or not watchers:
        return
    gathered = _gather([{name: value.cpu() for name, value in watcher.state_dict().items()} for watcher in watchers])
    for index, watcher in enumerate(watchers):
        merged: Any = _fresh(watcher)
        for states in gathered:
            other = _fresh(watcher)
            other.load_state_dict(states[index])
            merged.merge(other)
        watcher.load_state_dict(merged.state_dict())


@contextlib.contextmanager
def merging_over_ranks(watchers: Sequence[Merged]) -> Iterator[None]:
    """Let all watchers have seen, at the end, what they see meanwhile on any rank.

    What they have seen before counts once if it is the same on all ranks: they share it, from an earlier calibration
    or a loaded state.
    """
    if world_size() == 1 or not watchers or len(set(_gather(_digest(watchers)))) > 1:
        yield
        merge_over_ranks(watchers)
        return
    before: list[Any] = [copy.deepcopy(watcher) for watcher in watchers]
    for watcher in watchers:
        watcher.load_state_dict(_fresh(watcher).state_dict())
    try:
        yield
        merge_over_ranks(watchers)
    finally:
        for old, watcher in zip(before, watchers, strict=True):
            old.merge(watcher)
            watcher.load_state_dict(old.state_dict())


def _fresh(watcher: Merged) -> Merged:
    """Return one of its kind that has seen nothing."""
    if isinstance(watcher, Watcher):
        return watcher.fresh()
    return make_observer(watcher.spec, watcher.name)


def _digest(watchers: Sequence[Merged]) -> str:
    """Tells states apart."""
    digest = hashlib.sha256()
    for watcher in watchers:
        for name, value in watcher.state_dict().items():
            digest.update(f"{name} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _gather(value: T) -> list[T]:
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered
