"""The checks a graph runs."""

from __future__ import annotations

import pytest
import torch

from fxquant.capture.conditions import as_conditions, check_condition, holds, read_condition, show
from fxquant.capture.guards import InputError, check_fixed, check_sizes, pack, unpack
from fxquant.capture.inputs import pytree


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "s.__class__", "(lambda: 1)()", "[x for x in s]", "print(1)", "open('x')"),
        *("9**9**9 > 0", "2**s[0][0] > 0", "'a' * 10", "s[0] == 1", "-" * 5000 + "1", "(" * 300 + "1" + ")" * 300),
    ],
)
def test_only_arithmetic_on_sizes_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|characters"):
        read_condition(text)
    with pytest.raises(InputError):
        as_conditions((text,))


@pytest.mark.parametrize(
    "condition",
    [
        *("x", (), ("size", 0), ("size", -1, 0), ("size", 0, 10**9), ("**", 2, 2), ("==", 1), ("==", 1, 2.0)),
        *(("==", 1, 2**70), ("max",), ("not", 1, 2), True, (1, 2), ("and", "x")),
    ],
)
def test_only_conditions_are_taken(condition: object) -> None:
    with pytest.raises(ValueError, match=r"is no|does not fit"):
        check_condition(condition)


def test_a_condition_is_bounded() -> None:
    deep: object = 1
    for _ in range(100):
        deep = ("+", deep, 1)
    with pytest.raises(ValueError, match="no condition"):
        check_condition(deep)
    square: object = ("size", 0, 0)
    for _ in range(6):
        square = ("*", square, square)
    assert not holds(("==", square, 0), [(10**6,)])  # beyond 64 bits


def test_conditions() -> None:
    texts = ("s[0][0] == s[1][0]", "s[0][1] % 2 == 0 or s[0][1] == 1", "max(s[0][1], ceil(s[1][0] / 2)) >= 1")
    conditions = tuple(map(read_condition, texts))
    check_sizes((torch.ones(3, 4), torch.ones(3)), ("x", "y"), conditions)
    check_sizes((torch.ones(3, 1), torch.ones(3)), ("x", "y"), conditions)
    with pytest.raises(InputError, match=r"it needs x\.size\(0\) == y\.size\(0\)\. "):
        check_sizes((torch.ones(3, 4), torch.ones(2)), ("x", "y"), conditions)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1 <= s[0][0] < 5", "1 <= x.size(0) and x.size(0) < 5"),
        ("(s[0][0] + 1) * 2 == -4", "(x.size(0) + 1) * 2 == -4"),
        ("not s[0][0] ** 2 > 9", "not (x.size(0) * x.size(0) > 9)"),
        ("s[0][0] == 1 or s[0][0] // 2 != 3 and abs(s[0][0]) > 1", None),
    ],
)
def test_a_condition_is_what_it_was_read_from(text: str, shown: str | None) -> None:
    condition = read_condition(text)
    assert shown is None or show(condition, ("x",)) == shown
    for size in range(8):
        assert holds(condition, [(size,)]) == bool(eval(text, {"s": [(size,)]}))


def test_a_fixed_value_must_have_the_same_type() -> None:
    check_fixed(1, "n", 1)
    for other in (True, 1.0, None, torch.ones(())):
        with pytest.raises(InputError, match="argument 'n' was 1"):
            check_fixed(other, "n", 1)


def test_pack_and_unpack() -> None:
    value = {"a": 1, "b": (2, [3])}
    structure = pytree.treespec_dumps(pytree.tree_structure(value))
    assert pack(unpack(value, "v", structure), structure) == value
