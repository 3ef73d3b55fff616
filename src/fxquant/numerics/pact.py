"""PACT: a learned clip, a, and nothing else (arXiv 1805.06085).

    x' = clamp(round(x / s), n, p) * s          a = p s          to a:  sum g where x is clipped above

The parameter is the step s = a / p, so that scales go by one name; its gradient is p times the one to a. On signed
grids the lower clip moves along.
"""

from __future__ import annotations

from torch import Tensor

from fxquant.core.spec import Spec
from fxquant.numerics.lsq import positive
from fxquant.numerics.straight_through import straight_through


def pact(x: Tensor, scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned clip."""
    return straight_through(x, positive(scale), zero_point, spec, margin=0.0, inside=False)
