"""What is said to be better is not worse, on any kind of model."""

from __future__ import annotations

import pytest
import torch

import fxquant as fq
from fxquant.algorithms import BALANCED, BEST, FAST
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO

SOME = ("resnet", "mobilenet", "linear_batch_norm", "encoder_block")


@pytest.mark.broad
@pytest.mark.parametrize("target", ["x86", "npu"])
@pytest.mark.parametrize("name", SOME)
def test_balanced_is_not_worse_than_fast(name: str, target: str) -> None:
    model, x = ZOO[name].build(), ZOO[name].inputs()
    with torch.no_grad():
        fast, balanced = (
            sqnr_db(
                model(*x),
                fq.quantize(model, [x], target=target, algorithms=each, engine="reference", precision="int8")(*x),
            )
            for each in (FAST, BALANCED)
        )
    assert balanced > fast - 3.0


def test_more_effort_does_all_that_less_does() -> None:
    kinds = [{type(each) for each in algorithms} for algorithms in (FAST, BALANCED, BEST)]
    assert kinds[0] < kinds[1] and kinds[0] < kinds[2]
