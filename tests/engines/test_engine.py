"""The value type itself: what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import fxquant as fq
from fxquant.targets.x86 import x86

GOOD: dict[str, Any] = {"name": "mine", "target": x86, "available": lambda: True, "apply": lambda model: model}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": ""}, "a name of its own"),
        ({"name": "auto"}, "a name of its own"),
        ({"target": x86()}, "'mine': target is Target.*Give a function"),
        ({"available": True}, "'mine': available is True. Give a function"),
        ({"apply": None}, "'mine': apply is None"),
    ],
)
def test_what_is_no_engine_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(fq.ConfigError, match=message):
        fq.Engine(**{**GOOD, **changed})
