"""A spec of each way to learn a range, a batch, and a quantizer that has seen it."""

from __future__ import annotations

import torch

from fxquant.config.spec import Spec
from fxquant.numerics.fake_quant import FakeQuant

SPECS = {
    "ste": Spec(signed=False, symmetric=False, learn="ste", observer="moving_average"),
    "lsq": Spec(bits=4, signed=False, learn="lsq"),
    "lsq asym": Spec(bits=4, signed=False, symmetric=False, learn="lsq"),
    "lsq+": Spec(bits=4, signed=False, symmetric=False, learn="lsq+"),
    "tqt": Spec(learn="tqt"),
    "pact": Spec(bits=4, signed=False, learn="pact"),
}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def trained(spec: Spec) -> FakeQuant:
    quantizer = FakeQuant(spec, "t").train()
    quantizer(X)
    return quantizer
