"""The ops that are registered where torch has none of its own compute what torch's compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fxquant.graph.qdq_ops import register_decomposed
from fxquant.graph.torch_compat import decomposed

X = torch.linspace(-3, 3, 24).reshape(4, 6)
Q = torch.arange(-12, 12, dtype=torch.int8).reshape(4, 6)
SCALES, ZEROS = torch.tensor([0.1, 0.02, 0.3, 0.05]), torch.tensor([0, 3, -2, 1])
ENDS = (-128, 127, torch.int8)
CALLS = {
    "quantize_per_tensor.default": (X, 0.02, 3, *ENDS),
    "quantize_per_tensor.tensor": (X, torch.tensor(0.02), torch.tensor(3), *ENDS),
    "quantize_per_channel.default": (X, SCALES, ZEROS, 0, *ENDS),
    "dequantize_per_tensor.default": (Q, 0.02, 3, *ENDS),
    "dequantize_per_tensor.tensor": (Q, torch.tensor(0.02), torch.tensor(3), *ENDS),
    "dequantize_per_channel.default": (Q, SCALES, ZEROS, 0, *ENDS),
    "dequantize_per_channel_group.default": (
        *(Q, SCALES.reshape(4, 1).repeat(1, 2), ZEROS.reshape(4, 1).repeat(1, 2)),
        *(*ENDS, 3, torch.float32),
    ),
    "choose_qparams.tensor": (X, -128, 127, 1e-9, torch.int8),
    "choose_qparams_symmetric.tensor": (X, -128, 127, 1e-9, torch.int8),
}


@pytest.fixture(scope="module")
def ours() -> object:
    library = register_decomposed("fxquant_own_decomposed")
    yield torch.ops.fxquant_own_decomposed
    library._destroy()


@pytest.mark.parametrize("name", CALLS)
def test_our_op_is_torchs(name: str, ours: object) -> None:
    packet, overload = name.split(".")
    made = [getattr(getattr(space, packet), overload)(*CALLS[name]) for space in (ours, decomposed)]
    for own, theirs in zip(*[one if isinstance(one, tuple) else (one,) for one in made], strict=True):
        assert isinstance(own, Tensor) and own.dtype == theirs.dtype
        assert torch.equal(own, theirs)
