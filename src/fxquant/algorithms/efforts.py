"""Algorithms that go well together, by what they may cost.

FAST        one pass over the data
BALANCED    one pass over the data as well, in which inputs of weights are looked at, too; then, however much data there
            is, the graph runs about three times on 24 samples, where weights have one scale twice more on 48, and
            weights are chosen: seconds, with the conversion
BEST        minutes: blocks are reconstructed one by one

SmoothQuant is in the last two for layer norms alone, by what it was measured to give: through other weights and
residuals it may scale channels by hundreds, which costs more than it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from fxquant.algorithms.bias_correction import BiasCorrection
from fxquant.algorithms.cross_layer_equalization import CrossLayerEqualization
from fxquant.algorithms.gptq import GPTQ
from fxquant.algorithms.learned_ranges import LearnedRanges
from fxquant.algorithms.measured_bias import MeasuredBias
from fxquant.algorithms.reconstruction import Reconstruction
from fxquant.algorithms.refit import Refit
from fxquant.algorithms.smooth_quant import SmoothQuant
from fxquant.errors import ConfigError
from fxquant.graph.algorithm import Algorithm

Effort = Literal["fast", "balanced", "best"]

FAST: tuple[Algorithm, ...] = (BiasCorrection(),)
BALANCED: tuple[Algorithm, ...] = (
    CrossLayerEqualization(),
    SmoothQuant(strength=None),
    GPTQ(fine_features=2048),
    BiasCorrection(),
    MeasuredBias(samples=24),
    Refit(),
)
BEST: tuple[Algorithm, ...] = (
    CrossLayerEqualization(),
    SmoothQuant(strength=None),
    LearnedRanges(),
    Reconstruction(),
    BiasCorrection(),
    MeasuredBias(),
)
EFFORTS: Mapping[str, tuple[Algorithm, ...]] = MappingProxyType({"fast": FAST, "balanced": BALANCED, "best": BEST})


def by_effort(effort: str) -> tuple[Algorithm, ...]:
    """Return the algorithms of `quantize(effort=...)`, in their order."""
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise ConfigError(f"effort={effort!r} is unknown. Known: {', '.join(map(repr, EFFORTS))}.")
    return EFFORTS[effort]
