"""One state for the observers of all ranks: that of an observer which saw the data of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from fxquant.numerics.channel_mean import ChannelMean
from fxquant.numerics.observers import Observer, make_observer
from fxquant.numerics.ranks import world_size


def merge_means(means: Sequence[ChannelMean]) -> None:
    """The same for channel means, which add up."""
    if world_size() == 1 or not means:
        return
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, [(mean.total.cpu(), mean.count.cpu()) for mean in means])
    for index, mean in enumerate(means):
        mean.total.copy_(sum(states[index][0] for states in gathered))
        mean.count.copy_(sum(states[index][1] for states in gathered))


def merge_over_ranks(observers: Sequence[Observer]) -> None:
    """Merge each observer with its twins on the other ranks, in the order of the ranks, in one collective.

    Every rank has to call this with the same observers in the same order.
    """
    if world_size() == 1 or not observers:
        return
    mine = [{name: value.cpu() for name, value in observer.state_dict().items()} for observer in observers]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, mine)
    for index, observer in enumerate(observers):
        merged = make_observer(observer.spec, observer.name)
        for states in gathered:
            other = make_observer(observer.spec, observer.name)
            other.load_state_dict(states[index])
            merged.merge(other)
        observer.load_state_dict(merged.state_dict())
