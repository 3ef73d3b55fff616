"""The integers that an algorithm chose are those that are stored."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.algorithms.fix_weight import fix_weight
from fxquant.algorithms.weighted_op import weighted_ops
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.weights.weight_range import quantize_weight

QCONFIGS = {
    "per_channel": fq.get_default_qconfig("x86"),
    "per_tensor": fq.QConfig(activation=fq.Spec(), weight=fq.Spec(granularity="per_tensor", observer="minmax")),
    "int4_groups": fq.int4_weight_only_qconfig,
}


@dataclass(frozen=True)
class RoundDown(fq.algorithms.Algorithm):
    """One step below the nearest integer, so that no weight is at the end of its range."""

    def apply(self, region: Region, context: Context) -> None:
        for op in list(weighted_ops(region, context)):
            q, scale, zero = quantize_weight(op.weight.detach().float(), op.spec, "weight")
            fix_weight(region, op, (q - 1).clamp(min=op.spec.quant_min), scale, zero)


@pytest.mark.parametrize("name", QCONFIGS)
def test_chosen_integers_and_their_grid_are_stored(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval(), torch.rand(4, 64)
    mapping = fq.QConfigMapping().set_global(QCONFIGS[name])
    nearest, lower = (
        fq.quantize(model, [x], qconfig_mapping=mapping, algorithms=algorithms, engine="reference")
        for algorithms in ((), (RoundDown(), fq.algorithms.BiasCorrection()))
    )
    for path in ("0", "2"):
        one, other = nearest.get_submodule(path), lower.get_submodule(path)
        assert torch.equal(one.weight_scale, other.weight_scale)
        assert torch.equal((one.integers - 1).clamp(min=one.spec.quant_min), other.integers)
        assert torch.equal(one.dequantized("bias"), other.dequantized("bias"))
    assert torch.isfinite(lower(x)).all()
