"""YAML of others: plain values, or an error of ours that names the line."""

from __future__ import annotations

import pytest

import fxquant as fq
from fxquant.config.read_yaml import read_yaml

_LAUGHS = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)


def test_values_and_their_lines() -> None:
    text = "a: 1\nb:\n  c: [x, {d: 2001-01-01}]\n"
    content, lines = read_yaml(text, "f")
    assert isinstance(content, dict) and content["a"] == 1
    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", "1", "d"): 3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2001-13-45", "f:2: '2001-13-45' is no timestamp"),
        (f"a: {'1' * 6000}", "f:1: '1111.* is no int"),
        ("a: !!int x", "f:1: 'x' is no int"),
        ("a: !!float x", "f:1: 'x' is no float"),
        ("a: !!bool x", "f:1: 'x' is no bool"),
        ("!!timestamp x: 1", "f:1: 'x' is no timestamp"),
        ("? [a]\n: b", "f:1: a key is a list"),
        ("a: 1\na: 2", "f:2: the key a is there twice"),
        ("a: !!python/object/apply:os.getcwd []", "f is not YAML"),
        ("a: \0", "f is not YAML"),
        ("a: &a [*a]", "inside of itself"),
        ("[" * 3000, "nested too deep|not YAML"),
        (_LAUGHS, "aliases that stand for as many"),
        (f"a: &a {'x' * 10**6}\nb: [{', '.join(['*a'] * 99)}]", "aliases that stand for as many"),
    ],
)
def test_what_a_file_may_not_say(text: str, says: str) -> None:
    with pytest.raises(fq.ConfigError, match=says):
        read_yaml(text, "f")
