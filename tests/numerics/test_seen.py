"""Tensors that were read: replaced, written to, or as they were."""

from __future__ import annotations

import torch

from fxquant.numerics.seen import Seen


def test_every_change_is_seen() -> None:
    table = {"scale": torch.tensor(0.5), "zero": torch.tensor([1, 2])}
    seen = Seen([table, table], ["scale", "zero"])
    assert seen.holds()
    table["zero"].data[1] = 3  # counted by no version
    assert not seen.holds()
    table["zero"].data[1] = 2
    assert seen.holds()
    table["scale"] = torch.tensor(0.5)  # equal, and another one
    assert not seen.holds()
    del table["scale"]
    assert not seen.holds()
