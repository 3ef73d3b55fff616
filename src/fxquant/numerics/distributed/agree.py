"""Agreement between the processes of a training run: each collective is a small tensor, and a no-op in one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Tell how many processes train together; 1 outside of torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def agree_on_range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range that covers those of all ranks, in one collective."""
    if world_size() == 1:
        return low, high
    both = torch.stack((-low, high))
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return -both[0], both[1]


def agree_on_mean(value: Tensor) -> Tensor:
    """Return the mean over all ranks."""
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total / world_size()
