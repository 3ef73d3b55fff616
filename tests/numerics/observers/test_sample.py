"""A bounded sample of calls, from all of the data."""

from __future__ import annotations

import torch

from fxquant.numerics.observers.sample import Sample


def test_memory_has_a_bound_and_the_sample_is_spread_over_the_data() -> None:
    sample = Sample(2, most=10 * (4 * 4 + 8))
    for index in range(100):
        sample(torch.full((4,), float(index)), torch.tensor(index))
    calls = sample.calls()
    kept = [int(label) for _, label in calls]
    assert 5 <= len(calls) <= 10
    assert kept == list(range(0, 100, int(sample.stride)))
    assert all(torch.equal(x, torch.full((4,), float(index))) for x, index in calls)


def test_a_call_larger_than_the_bound_is_kept_alone() -> None:
    sample = Sample(1, most=4)
    for _ in range(3):
        sample(torch.zeros(100))
    assert len(sample.calls()) == 1


def test_state_dicts_carry_it_and_merging_puts_two_together() -> None:
    one, other = Sample(1, most=1 << 20), Sample(1, most=1 << 20)
    one(torch.zeros(2))
    other(torch.ones(3))
    other(torch.ones(4))
    loaded = one.fresh()
    loaded.load_state_dict(other.state_dict())
    one.merge(loaded)
    assert [len(x) for (x,) in one.calls()] == [2, 3, 4]
    one.load_state_dict(one.fresh().state_dict())
    assert one.calls() == []
