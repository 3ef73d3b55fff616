from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms import measured_bias
from fxquant.algorithms.some_calls import count_judges, ways_to_call
from fxquant.numerics.affine import sqnr_db

BATCHES = [(64,), (8, 8, 8, 8), (16, 2), (1,) * 20, (9, 9)]


@pytest.mark.parametrize("shape", [(2,), (3, 4, 4)], ids=["rows", "pictures"])
@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_a_few_samples_are_taken_from_all_of_the_data(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    kept: list[list[object]] = [[torch.full((size, *shape), float(index))] for index, size in enumerate(sizes)]
    for way in ways_to_call(kept, 12):
        calls = [call[0] for call in way]
        assert sum(map(len, calls)) >= 10  # all that there is, from one that has but two rows
        if len(calls) > 1:
            assert len({float(call.flatten()[0]) for call in calls}) >= min(len(sizes), 2)
            assert 0 < count_judges(calls) < len(calls)


def test_pictures_come_few_at_a_time_with_channels_last() -> None:
    pictures = torch.randn(16, 3, 4, 4)
    first, second, whole = ways_to_call([[pictures, torch.arange(16)]], 15)
    assert [len(call[0]) for call in first] == [4, 1] * 3
    assert all(len(call[1]) == len(call[0]) for call in first)
    assert all(call[0].is_contiguous(memory_format=torch.channels_last) for call in first)
    assert torch.equal(torch.cat([call[0] for call in first]), torch.cat([call[0] for call in second]))
    assert [len(call[0]) for call in second] == [5, 5, 5]
    assert len(whole) == 1


def test_sequences_are_left_whole() -> None:
    steps = torch.randn(30, 2, 5)  # the first axis may be time
    first, second, _ = ways_to_call([[steps]], 24)
    assert [len(call[0]) for call in first] == [len(call[0]) for call in second] == [8, 8, 8]


class Views(nn.Module):
    """Takes pictures in the usual layout only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(torch.relu(self.conv(x)).view(x.shape[0], -1))
        return y


def test_graphs_that_need_a_layout_are_corrected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, data = Views().eval(), [torch.randn(8, 3, 6, 6) for _ in range(3)]
    runs = []
    means = measured_bias._means
    monkeypatch.setattr(measured_bias, "_means", lambda *args: runs.append(args[2]) or means(*args))
    quantized = fq.quantize(model, data, engine="reference")
    assert len([calls for calls in runs if calls]) == 2  # channels last do not go into a view
    assert sqnr_db(model(data[0]), quantized(data[0])) > 30


def test_nothing_was_kept() -> None:
    assert [*map(list, ways_to_call([], 12))] == [[]]
