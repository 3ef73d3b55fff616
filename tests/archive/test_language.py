"""The words that a saved graph may call."""

from __future__ import annotations

import torch

from fxquant.archive.language import WORDS, aten_op


def test_ops_compute_on_tensors() -> None:
    """TorchScript has twins on numbers, texts and lists under the same words, without checks of what they are given."""
    found = 0
    for word in sorted(WORDS):
        packet = getattr(torch.ops.aten, word, None)
        for overload in packet.overloads() if packet is not None else ():
            op = aten_op(f"torch.ops.aten.{word}.{overload}")
            if op is None or word in ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"):
                continue
            found += 1
            assert "Tensor" in str(op._schema), op
    assert found > 500
    assert aten_op("torch.ops.aten.remainder.Scalar") is not None
    assert aten_op("torch.ops.aten.remainder.int") is None
    assert aten_op("torch.ops.aten.mul.left_t") is None
    assert aten_op("torch.ops.aten.to.dtype") is not None
    assert aten_op("torch.ops.aten.to.prim_dtype") is None  # the dtype is a number of any size
    assert aten_op("torch.ops.aten.size.default") is not None
