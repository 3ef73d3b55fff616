"""The checks a graph runs."""

from __future__ import annotations

import pytest
import torch

from fxquant.capture.guards import InputError, check_fixed, check_sizes, is_condition, pack, unpack
from fxquant.capture.inputs import pytree


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "s.__class__", "(lambda: 1)()", "[x for x in s]", "print(1)", "open('x')"],
)
def test_only_arithmetic_on_sizes_is_evaluated(text: str) -> None:
    assert not is_condition(text)
    with pytest.raises(InputError):
        check_sizes((torch.ones(1),), ("x",), (text,))


def test_conditions() -> None:
    conditions = ("s[0][0] == s[1][0]", "s[0][1] % 2 == 0 or s[0][1] == 1", "max(s[0][1], ceil(s[1][0] / 2)) >= 1")
    check_sizes((torch.ones(3, 4), torch.ones(3)), ("x", "y"), conditions)
    check_sizes((torch.ones(3, 1), torch.ones(3)), ("x", "y"), conditions)
    with pytest.raises(InputError, match=r"it needs x\.size\(0\) == y\.size\(0\)\. "):
        check_sizes((torch.ones(3, 4), torch.ones(2)), ("x", "y"), conditions)


def test_a_fixed_value_must_have_the_same_type() -> None:
    check_fixed(1, "n", 1)
    for other in (True, 1.0, None, torch.ones(())):
        with pytest.raises(InputError, match="argument 'n' was 1"):
            check_fixed(other, "n", 1)


def test_pack_and_unpack() -> None:
    value = {"a": 1, "b": (2, [3])}
    structure = pytree.treespec_dumps(pytree.tree_structure(value))
    assert pack(unpack(value, "v", structure), structure) == value
