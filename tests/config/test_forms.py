"""The forms in which a custom config may be given."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from fxquant.config.forms import as_dict, as_indexes, as_strings, closest, need_method, read_keys, set_each, set_pairs
from fxquant.errors import ConfigError


def test_the_closest_name_is_offered() -> None:
    assert closest("layr1", ["layer1", "head"]) == " Closest: 'layer1'."
    assert closest("LAYER1", ["layer1", "Head"]) == " Closest: 'layer1'."
    assert closest("zzz", ["layer1"]) == ""


def test_one_or_several() -> None:
    assert as_strings("a") == ["a"] and as_strings(("a", "b")) == ["a", "b"]
    assert as_indexes(2, "k") == [2] and as_indexes((0, 1), "k") == [0, 1]
    for bad in (-1, True, "0", [0, None]):
        with pytest.raises(ConfigError, match="k="):
            as_indexes(bad, "k")


def test_entries_and_pairs_go_to_their_setters() -> None:
    got: list[Any] = []
    set_each(lambda *args: got.append(args), ["a", ("b", 1)])
    set_pairs(lambda *args: got.append(args), {"static": {nn.ReLU: nn.GELU}})
    assert got == [("a",), ("b", 1), (nn.ReLU, nn.GELU, "static")]
    with pytest.raises(ConfigError, match="custom modules are given as"):
        set_pairs(print, {"static": [nn.ReLU]})


def test_unknown_keys_and_missing_methods_are_errors() -> None:
    with pytest.raises(ConfigError, match="Closest: 'name'"):
        read_keys("config", {"nam": 1}, {"name": print})
    with pytest.raises(ConfigError, match="has no method 'from_float'"):
        need_method(nn.ReLU, "from_float", "key")
    with pytest.raises(ConfigError, match="Give a dict"):
        as_dict(3, "config")
