"""Means of channels: over batches, merged, and of what was seen alone."""

from __future__ import annotations

import torch

from fxquant.numerics.observers.channel_mean import Means


def test_the_mean_of_all_batches() -> None:
    watcher = Means(channels=3, axis=1).make()
    assert watcher.mean() is None
    batches = [torch.randn(2, 3, 4), torch.randn(5, 3, 4)]
    for batch in batches:
        watcher(batch)
    mean = watcher.mean()
    assert mean is not None and torch.allclose(mean, torch.cat(batches).mean((0, 2)), atol=1e-6)


def test_a_picture_without_a_batch_has_its_channels_first() -> None:
    watcher, x = Means(channels=4, axis=1, rank=4).make(), torch.randn(4, 4, 4)
    watcher(x)
    mean = watcher.mean()
    assert mean is not None and torch.allclose(mean, x.mean((1, 2)), atol=1e-6)


def test_other_tensors_are_passed_over() -> None:
    watcher = Means(channels=3, axis=-1).make()
    sparse = torch.eye(3).to_sparse()
    for other in (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(0, 3), torch.zeros(()), sparse):
        watcher(other)
    assert watcher.mean() is None
    watcher(torch.full((2, 3), torch.inf))
    assert watcher.mean() is None


def test_merged_streams_are_one() -> None:
    x = torch.randn(8, 3)
    whole, first, second = (Means(channels=3, axis=-1).make() for _ in range(3))
    whole(x)
    first(x[:5])
    second(x[5:])
    first.merge(second)
    one, other = first.mean(), whole.mean()
    assert one is not None and other is not None and torch.allclose(one, other, atol=1e-6)
