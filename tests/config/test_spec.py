"""A spec checks itself: what does not go together is an error that says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "ends", "dtype"),
    [
        (Spec(), (-128, 127), torch.int8),
        (Spec(signed=False), (0, 255), torch.uint8),
        (Spec(bits=4), (-8, 7), torch.int8),
        (Spec(bits=16, signed=False), (0, 65535), torch.uint16),
        (Spec(limits=(-127, 127)), (-127, 127), torch.int8),
    ],
    ids=str,
)
def test_a_grid_has_its_ends_and_dtype(spec: Spec, ends: tuple[int, int], dtype: torch.dtype) -> None:
    assert (spec.quant_min, spec.quant_max) == ends and spec.dtype is dtype


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"bits": 17}, "from 2 to 16"),
        ({"bits": True}, "a whole number"),
        ({"granularity": "per_row"}, "expected one of"),
        ({"observer": "minmx"}, "Closest: 'minmax'"),
        ({"granularity": "per_group"}, "needs a group_size"),
        ({"observer": "fixed"}, "needs a range"),
        ({"observer": "custom"}, "needs a factory"),
        ({"range": (1.0, 0.0), "observer": "fixed"}, "low < high"),
        ({"limits": (-200, 127)}, "around 0"),
        ({"dynamic": True, "learn": "ste"}, "cannot be learned"),
        ({"learn": "tqt", "symmetric": False}, "symmetric grids"),
        ({"learn": "lsq", "scale": "pow2"}, "use 'tqt'"),
        ({"learn": "lsq+"}, "learns an offset"),
    ],
)
def test_what_does_not_go_together_is_an_error(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Spec(**wrong)


def test_a_spec_for_training_and_one_to_store() -> None:
    assert Spec().trained().learn == "ste" and Spec(dynamic=True).trained().learn is None
    assert Spec(learn="tqt").scale == "pow2"
    custom = Spec(observer="custom", factory=torch.nn.Identity)
    assert custom.stored() == Spec(observer="minmax")
    assert (
        str(Spec(granularity="per_channel", axis=1, signed=False, symmetric=False)) == "u8 asym per_channel1 histogram"
    )
