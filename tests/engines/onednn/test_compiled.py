"""torch.compile takes a lowered model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq
from fxquant.engines.onednn.support import supports
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO

pytestmark = pytest.mark.skipif(not supports("conv2d", "relu", False), reason="this torch has no oneDNN int8 kernels")


def outputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> list[Tensor]:
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(model(*args, **(kwargs or {}))) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", ["resnet", "encoder_block"])
def test_torch_compile_takes_a_lowered_model(name: str) -> None:
    entry = ZOO[name]
    args, kwargs = entry.inputs(), entry.kwargs()
    lowered = fq.quantize(entry.build(), [args or kwargs], example_inputs=args, example_kwargs=kwargs)
    torch._dynamo.reset()
    compiled = torch.compile(lowered, backend="aot_eager", fullgraph=True)
    for left, right in zip(outputs(lowered, args, kwargs), outputs(compiled, args, kwargs), strict=True):
        assert sqnr_db(left, right) > 35
