"""Models that are to be one segment of machine code, beside the reference."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxquant as fq
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.affine import sqnr_db


class Between(nn.Module):
    """Two linears with something between them."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Linear(8, 20), nn.Linear(20, 6), function

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.b(self.function(self.a(x), *more))  # type: ignore[no-any-return]


class BetweenPixels(nn.Module):
    """The same of convolutions."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 7, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))  # type: ignore[no-any-return]


def check_one_segment(model: nn.Module, *inputs: Tensor, outside: int = 0) -> None:
    """One segment of machine code, with so many nodes of Python, agrees with the reference at any batch."""
    from fxquant.engines.native.runner import NativeRunner

    torch.manual_seed(0)
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), inputs)
    with torch.no_grad():
        prepared(*inputs)
        reference, native = (fq.convert_fx(prepared, engine=each) for each in ("reference", fq.Native(cache=None)))
        for batch in (2, 1, 5):
            given = [torch.cat([x] * 3)[:batch] if len(x) == 2 else x for x in inputs]
            for expected, actual in zip(
                *(pytree.tree_leaves(each(*given)) for each in (reference, native)), strict=True
            ):
                assert expected.shape == actual.shape and expected.dtype == actual.dtype
                assert expected.stride() == actual.stride()
                assert sqnr_db(expected.double(), actual.double()) > 40
    assert isinstance(native, Region)
    runner = lowering_of(native).runner
    assert isinstance(runner, NativeRunner) and not runner.passed_on
    for program in runner.programs.values():
        assert len(program.levels) == 1 and sum(map(len, program.outside.values())) == outside
