"""Plain values as JSON and back; what no value is, is refused."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import pytest
import torch

from fxquant.archive.value_json import from_json, to_json
from fxquant.config.spec import Spec
from fxquant.errors import ArchiveError

VALUES = (
    *(None, True, 3, -2.5, "text", math.inf, (1, [2, (3,)]), {"a": 1, 2: ()}, slice(1, None, 2), ...),
    *(torch.float32, torch.strided, torch.device("cpu"), torch.nn.functional.relu, Spec(bits=4)),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_value_comes_back(value: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(value))))
    assert type(again) is type(value) and again == value


class Pair(NamedTuple):
    first: int


@pytest.mark.parametrize("value", [object(), Pair(1)])
def test_what_cannot_be_stored_is_named(value: object) -> None:
    with pytest.raises(ArchiveError, match=f"holds a {type(value).__name__}"):
        to_json(value)


@pytest.mark.parametrize(
    "value", [[], ["run", 1], ["dict", [1, 2], [1, 3]], ["torch", "load"], ["device", "cuda"], 2**70, ["float", "1"]]
)
def test_what_no_value_is_is_refused(value: object) -> None:
    with pytest.raises(ArchiveError):
        from_json(value)
