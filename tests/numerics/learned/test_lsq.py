"""LSQ+ learns an offset."""

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


LEARNED = {name: spec for name, spec in SPECS.items() if name != "ste"}


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def test_the_offset_of_lsq_plus_learns() -> None:
    spec = LEARNED["lsq+"]
    quantizer = FakeQuant(spec, "t").train()
    quantizer(X.abs())  # starts at a range from 0 on
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    assert int(quantizer.compute_qparams()[1]) == 0
    optimizer = torch.optim.Adam(quantizer.parameters(), 1e-2)
    errors = []
    for _ in range(60):
        optimizer.zero_grad()
        error = (quantizer(x) - x).square().mean()
        error.backward()
        optimizer.step()
        errors.append(float(error.detach()))
    assert int(quantizer.compute_qparams()[1]) > 3 and errors[-1] < 0.25 * errors[0]
