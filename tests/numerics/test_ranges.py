"""Exact ranges, whatever the layout in memory, per tensor, channel and group."""

from __future__ import annotations

import torch

from fxquant.config.spec import Spec
from fxquant.numerics.ranges import given_or_own_range, rows_like_scale, storage_order, tensor_range

X = torch.arange(24.0).reshape(2, 3, 4) - 7


def test_the_layout_does_not_matter() -> None:
    turned = X.permute(2, 0, 1)
    assert storage_order(turned).data_ptr() == X.data_ptr()
    assert [float(end) for end in tensor_range(turned, Spec())] == [-7.0, 16.0]


def test_channels_and_groups_have_their_own() -> None:
    low, high = tensor_range(X, Spec(granularity="per_channel", axis=1))
    assert low.tolist() == [-7.0, -3.0, 1.0] and high.tolist() == [8.0, 12.0, 16.0]
    low, _ = tensor_range(X, Spec(granularity="per_group", group_size=2))
    assert low.shape == (2, 3, 2) and float(low[1, 2, 1]) == 15.0
    assert rows_like_scale(X, Spec(granularity="per_channel", axis=1)).shape == (3, 8)


def test_a_given_range_comes_before_the_tensors_own() -> None:
    spec = Spec(observer="fixed", range=(-1.0, 2.0))
    assert [float(end) for end in given_or_own_range(X, spec)] == [-1.0, 2.0]
