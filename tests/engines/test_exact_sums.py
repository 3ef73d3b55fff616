"""Sums of the largest products, 255 times 127, are exact on every engine, also where pairs are summed in int16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.engines.table import as_engine
from fxquant.targets.x86 import x86

ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(not as_engine(name).available(), reason=f"{name} cannot run here"))
    for name in ("onednn", "native")
]
OPS = {
    "linear": (nn.Linear(40, 24), (4, 40)),
    "conv": (nn.Conv2d(24, 24, 3), (2, 24, 6, 6)),
    "padded": (nn.Conv2d(3, 24, 3, 2, 1), (2, 3, 7, 7)),
    "pointwise": (nn.Conv2d(48, 24, 1), (2, 48, 6, 6)),
    "grouped": (nn.Conv2d(24, 24, 3, groups=2), (2, 24, 6, 6)),
    "depthwise": (nn.Conv2d(40, 40, 3, padding=1, groups=40), (2, 40, 6, 6)),
    "large depthwise": (nn.Conv2d(40, 40, 5, 2, padding=2, groups=40), (2, 40, 9, 9)),
    "transposed": (nn.ConvTranspose2d(24, 24, 3, 2), (2, 24, 4, 4)),
    "conv1d": (nn.Conv1d(24, 24, 3), (2, 24, 9)),
}
EIGHT = fq.Spec(bits=8, signed=False, symmetric=False, observer="minmax")
SEVEN = fq.Spec(bits=7, signed=False, symmetric=False, observer="minmax")
SIGNED = fq.Spec(bits=8, signed=True, symmetric=True, observer="minmax")
DYNAMIC = fq.Spec(bits=8, signed=False, symmetric=False, dynamic=True, observer="minmax")
WEIGHT = fq.Spec(granularity="per_channel", observer="minmax", limits=(-127, 127))


@pytest.mark.broad
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("op", "activation"),
    [*((op, spec) for op in OPS for spec in (SEVEN, EIGHT)), ("conv", SIGNED), ("linear", SIGNED), ("linear", DYNAMIC)],
    ids=lambda value: (
        value if isinstance(value, str) else f"{'s' if value.signed else 'u'}{value.bits}{'dynamic' * value.dynamic}"
    ),
)
def test_the_largest_products_are_summed_exactly(op: str, activation: fq.Spec, engine: str) -> None:
    check(op, activation, WEIGHT, engine)


@pytest.mark.broad
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op", OPS)
def test_those_of_the_default_without_vnni_are_too(op: str, engine: str) -> None:
    check(op, EIGHT, x86(vnni=False).weight, engine)


@torch.no_grad()
def check(op: str, activation: fq.Spec, weight: fq.Spec, engine: str) -> None:
    layer, shape = OPS[op]
    layer.weight.copy_(
        torch.where(torch.arange(layer.weight.shape[0]) % 2 == 0, 1.0, -1.0).view(-1, *(1,) * (layer.weight.dim() - 1))
    )
    layer.bias.fill_(0.5)
    x = torch.ones(shape)
    x[0, 0] = 0.0
    mapping = fq.QConfigMapping().set_global(fq.QConfig(activation=activation, weight=weight))
    made = {
        name: fq.quantize(
            nn.Sequential(layer).eval(), [(x,)], qconfig_mapping=mapping, example_inputs=(x,), engine=name
        )
        for name in ("reference", engine)
    }
    torch.testing.assert_close(made[engine](x), made["reference"](x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@torch.no_grad()
def test_bytes_that_are_handed_in_need_not_keep_to_their_grid(engine: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 24)
    layer.weight.fill_(1.0)
    x = torch.ones(4, 40)
    x[0, 0] = 0.0
    mapping = fq.QConfigMapping().set_global(fq.QConfig(activation=SEVEN, weight=WEIGHT))
    prepared = fq.prepare_fx(nn.Sequential(layer).eval(), mapping, (x,), {"input_quantized_idxs": [0]})
    prepared(x)
    reference, made = (fq.convert_fx(prepared, engine=name) for name in ("reference", engine))
    beyond = torch.full((4, 40), 255, dtype=torch.uint8)
    try:
        expected = reference(beyond)
    except fq.FxQuantError:
        with pytest.raises(fq.FxQuantError):
            made(beyond)
        return
    torch.testing.assert_close(made(beyond), expected, rtol=1e-5, atol=1e-4)
