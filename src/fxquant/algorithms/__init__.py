"""Ways to make a quantized model better, for `quantize(algorithms=...)` and `prepare_fx(algorithms=...)`.

One file each. To write one, subclass `Algorithm` (graph/algorithm.py).
"""

from __future__ import annotations

from fxquant.algorithms.adaround import AdaRound
from fxquant.algorithms.bias_correction import BiasCorrection
from fxquant.algorithms.cross_layer_equalization import CrossLayerEqualization
from fxquant.algorithms.efforts import BALANCED, BEST, FAST
from fxquant.algorithms.gptq import GPTQ
from fxquant.algorithms.learned_ranges import LearnedRanges
from fxquant.algorithms.measured_bias import MeasuredBias
from fxquant.algorithms.measured_positions import MeasuredPositions
from fxquant.algorithms.reconstruction import Reconstruction
from fxquant.algorithms.refit import Refit
from fxquant.algorithms.smooth_quant import SmoothQuant
from fxquant.graph.algorithm import Algorithm, Statistic, Watched

# what is done unless the caller says otherwise
DEFAULT: tuple[Algorithm, ...] = FAST
# for targets with limits between scales that are powers of two
POWERS_OF_TWO: tuple[Algorithm, ...] = (*BALANCED, MeasuredPositions())

__all__ = [
    "BALANCED",
    "BEST",
    "DEFAULT",
    "FAST",
    "GPTQ",
    "POWERS_OF_TWO",
    "AdaRound",
    "Algorithm",
    "BiasCorrection",
    "CrossLayerEqualization",
    "LearnedRanges",
    "MeasuredBias",
    "MeasuredPositions",
    "Reconstruction",
    "Refit",
    "SmoothQuant",
    "Statistic",
    "Watched",
]
