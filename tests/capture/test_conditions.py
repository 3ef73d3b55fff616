"""Conditions on sizes: read from the expressions of torch.export, true or not, and refused where they are none."""

from __future__ import annotations

import pytest

from fxquant.capture.conditions import check_condition, holds, read_condition


@pytest.mark.parametrize(
    ("text", "sizes", "true"),
    [
        ("s[0][1] % 2 == 0", [(3, 4)], True),
        ("s[0][1] % 2 == 0", [(3, 5)], False),
        ("1 < s[0][0] < 8 and not s[1][0] == 2", [(4,), (3,)], True),
        ("max(s[0][0], 2) ** 2 >= 16", [(3,)], False),
        ("s[0][5] == 1", [(3,)], False),  # there is no such dim
        ("s[0][0] // (s[0][1] - 4) == 1", [(3, 4)], False),  # divides by 0
    ],
)
def test_a_condition_is_true_or_not(text: str, sizes: list[tuple[int, ...]], true: bool) -> None:
    assert holds(read_condition(text), sizes) is true


@pytest.mark.parametrize("text", ["open('x')", "s[0]", "s[0][0].bit_length()", "s[0][0] ** 99", "(", "9" * 40])
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|64 bits"):
        read_condition(text)


def test_a_condition_from_a_file_is_checked_for_depth_and_operations() -> None:
    deep: object = 1
    for _ in range(100):
        deep = ("neg", deep)
    for bad in (deep, ("run", 1), ("size", 0), ("size", -1, 0), ("+", 1), True):
        with pytest.raises(ValueError, match=r"is no|64 bits"):
            check_condition(bad)
