"""PACT: a learned clip, a, and nothing else (arXiv 1805.06085).

    x' = clamp(round(x / s), n, p) * s          a = p s          to a:  sum g where x is clipped above

The parameter is log256 s, s = a / p, so that scales go by one name. Descent moves a as the gradient to a would, and
Adam by a share of its size (`relative_scale`). On signed grids the lower clip moves along.
"""

from __future__ import annotations

from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.learned.base import Learned, Own, relative_scale, whole
from fxquant.numerics.learned.straight_through import straight_through


class Pact(Learned):
    """A learned clip."""

    def fake_quantize(self, own: Own, x: Tensor, spec: Spec) -> Tensor:
        return pact(x, own[self.name], whole(own["zero_point"]), spec)


def pact(x: Tensor, log_scale: Tensor, zero_point: Tensor, spec: Spec) -> Tensor:
    """Round to the grid of a learned clip."""
    # a = p s: the gradient to a is that to s over p, and a step of s that of a over p
    step = relative_scale(log_scale, 1.0 / spec.quant_max**2)
    return straight_through(x, step, zero_point, spec, margin=0.0, inside=False)
