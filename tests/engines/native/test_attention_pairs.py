"""Queries and keys as integers: their products fit int32, and no integer has room to spare."""

import pytest

pytest.importorskip("llvmlite")

from fxquant.engines.native.attention_pairs import key_words, most


@pytest.mark.parametrize("depth", [1, 2, 12, 33, 64, 128, 513])
def test_products_fit_int32(depth: int) -> None:
    assert depth * most(depth) ** 2 < 2**31
    assert most(depth) <= 32767
    assert depth * (most(depth) + 2) ** 2 >= 2**31 or depth == 1


def test_a_key_has_a_scale_and_pairs() -> None:
    assert [key_words(depth) for depth in (1, 2, 3, 64)] == [2, 2, 3, 33]
