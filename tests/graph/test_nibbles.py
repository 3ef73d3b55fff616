"""Two to a byte and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxquant.graph.nibbles import pack, unpack
from fxquant.graph.torch_compat import UNPACK


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_round_trip(shape: list[int], signed: bool) -> None:
    values = torch.randint(-8, 8, shape, dtype=torch.int8) if signed else torch.randint(0, 16, shape).to(torch.uint8)
    packed = pack(values)
    assert packed.dtype == torch.uint8 and packed.shape == (shape[0], -(-values[0].numel() // 2))
    for back in (unpack(packed, shape[1:], signed), UNPACK(packed, shape[1:], signed)):
        assert back.dtype == values.dtype and torch.equal(back, values)


@pytest.mark.parametrize("signed", [True, False])
def test_rows_that_are_looked_up(signed: bool) -> None:
    values = torch.randint(0, 8, (10, 7)).to(torch.int8 if signed else torch.uint8)
    index = torch.tensor([[1, 2, 9], [0, 0, 3]])
    assert torch.equal(unpack(pack(values)[index], (7,), signed), values[index])
