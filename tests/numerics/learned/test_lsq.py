"""LSQ+ learns an offset."""

from __future__ import annotations

import torch

from fxquant.numerics.fake_quant import FakeQuant
from numerics.learned_specs import SPECS, X


def test_the_offset_of_lsq_plus_learns() -> None:
    spec = SPECS["lsq+"]
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
