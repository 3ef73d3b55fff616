"""A batch norm is folded to the same bits after training and without, as nearly as the dtype of the weight allows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.numerics.weights.fold_norm import fold_norm


def pair(op: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    norm = nn.BatchNorm2d(6)
    for tensor, low, high in ((norm.running_mean, -1, 1), (norm.running_var, 0.5, 2), (norm.weight, 0.5, 2)):
        nn.init.uniform_(tensor, low, high)
    return nn.Sequential(op, norm).to(dtype)


OPS = {
    "conv": lambda: nn.Conv2d(4, 6, 3),
    "no_bias": lambda: nn.Conv2d(4, 6, 3, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
}


@pytest.mark.parametrize("op", OPS)
def test_both_flows_fold_to_the_same_bits(op: str) -> None:
    model, x = pair(OPS[op]()), torch.randn(2, 4, 7, 7)
    spec = fq.Spec(signed=False, symmetric=False, observer="minmax")
    plain, learned = (
        fq.QConfigMapping().set_global(fq.QConfig(activation=spec, weight=fq.Spec(observer="minmax", learn=learn)))
        for learn in (None, "ste")
    )
    prepared = fq.prepare_fx(model.eval(), plain, (x,))
    trained = fq.prepare_qat_fx(model.train(), learned, (x,)).eval()
    fq.calibrate(trained, [x])
    ours, theirs = prepared.get_submodule("0"), fq.freeze(trained).get_submodule("0")
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", OPS)
def test_it_is_rounded_once(op: str, dtype: torch.dtype) -> None:
    conv, norm = pair(OPS[op](), dtype).eval()
    weight, bias = fold_norm(conv, conv.weight, conv.bias, norm)
    wide = pair(OPS[op](), torch.float64).eval()
    wide.load_state_dict(nn.Sequential(conv, norm).state_dict())
    exact = fold_norm(wide[0], wide[0].weight, wide[0].bias, wide[1])
    assert weight.dtype == bias.dtype == dtype
    assert torch.equal(weight, exact[0].to(dtype)) and torch.equal(bias, exact[1].to(dtype))
