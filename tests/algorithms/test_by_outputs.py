"""Of two scales for all rows of a weight, the outputs decide."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import GPTQ, BiasCorrection, MeasuredBias
from fxquant.numerics.affine import sqnr_db
from fxquant.targets.npu import npu


class Saturating(nn.Module):
    """Some rows of the first weight are large, and all that they make is cut off; the others tell something."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 16, 3), nn.Conv2d(16, 8, 1)
        with torch.no_grad():
            self.first.weight[:3].mul_(60)
            self.last.weight[:, :3].mul_(0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.relu6(self.first(x)))


def made(model: nn.Module, data: list[Tensor], *algorithms: fq.algorithms.Algorithm) -> nn.Module:
    weight = fq.Spec(scale="pow2", observer="minmax")
    rules = {"": fq.QConfig(activation=fq.Spec(scale="pow2"), weight=weight)}
    options = {"algorithms": algorithms, "target": npu(), "engine": "reference", "precision": "int8"}
    return fq.quantize(model, data, qconfig_mapping=rules, **options)


def test_a_scale_that_cuts_large_rows_off_is_taken_where_outputs_come_nearer() -> None:
    torch.manual_seed(0)
    model = Saturating().eval()
    data, test = [torch.randn(12, 4, 12, 12) for _ in range(4)], torch.randn(24, 4, 12, 12)
    wanted = model(test)
    alone = sqnr_db(wanted, made(model, data, GPTQ(), BiasCorrection())(test))
    measured = sqnr_db(wanted, made(model, data, GPTQ(), BiasCorrection(), MeasuredBias())(test))
    assert measured > alone + 3.0


def test_weights_that_are_fixed_meanwhile_change_nothing() -> None:
    torch.manual_seed(0)
    model = Saturating().eval()
    data = [torch.randn(12, 4, 12, 12) for _ in range(2)]
    algorithms = (GPTQ(), BiasCorrection(), MeasuredBias())
    one, other = (made(model, data, *algorithms).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
