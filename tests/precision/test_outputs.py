"""Names of outputs."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.precision.outputs import named_tensors

Pair = namedtuple("Pair", "left right")


def test_outputs_have_names() -> None:
    @dataclass
    class Out:
        logits: Tensor
        rest: object = None

    x = torch.ones(1)
    given = Out(logits=x, rest={"a": [x, (x, 3)], "b": Pair(x, x.int()), "c": None})
    assert [name for name, _ in named_tensors(given)] == ["logits", "rest.a[0]", "rest.a[1][0]", "rest.b.left"]
    assert [name for name, _ in named_tensors(x)] == ["output"]
