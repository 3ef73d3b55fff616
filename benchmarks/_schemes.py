"""The grids of the classification recipes: bits of weights and activations, with float and with power-of-two scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms import BALANCED, POWERS_OF_TWO, Algorithm
from fxquant.targets.npu import npu


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """Grids for calibration and for training, the target that has them (None: that of the engine), and algorithms."""

    post: fq.QConfig
    training: fq.QConfig
    target: fq.Target | str | None = None
    algorithms: tuple[Algorithm, ...] = BALANCED

    def prepared(self, model: nn.Module, batches: Sequence[Tensor]) -> nn.Module:
        """Calibrated on these batches."""
        options = {"target": self.target, "algorithms": self.algorithms}
        return fq.calibrate(fq.prepare_fx(model, {"": self.post}, (batches[0],), **options), batches)

    def training_from(self, model: nn.Module, frozen: nn.Module, example: Tensor) -> nn.Module:
        """The model for training, its weights and ranges where algorithms put them after calibration."""
        prepared = fq.prepare_qat_fx(model.train(), {"": self.training}, (example,), target=self.target)
        prepared.load_state_dict(frozen.state_dict())
        return prepared


def _float_scales(weight_bits: int, bits: int) -> Scheme:
    """Zero points, a scale for each output channel of a weight; LSQ in training."""
    activation = fq.Spec(bits=bits, signed=False, symmetric=False)
    weight = fq.Spec(bits=weight_bits, granularity="per_channel")
    learned = fq.QConfig(activation=activation.with_(learn="lsq"), weight=weight.with_(learn="lsq"))
    return Scheme(post=fq.QConfig(activation=activation, weight=weight), training=learned)


def _powers_of_two(weight_bits: int, bits: int) -> Scheme:
    """One scale a tensor, shifts that an NPU has, no signs where nothing is negative; TQT in training."""
    activation, weight = fq.Spec(bits=bits, signed=False, scale="pow2"), fq.Spec(bits=weight_bits, scale="pow2")
    post = fq.QConfig(activation=activation, weight=weight)
    learned = fq.QConfig(activation=activation.with_(learn="tqt"), weight=weight.with_(learn="tqt"))
    return Scheme(post=post, training=learned, target=UNSIGNED_NPU, algorithms=POWERS_OF_TWO)


def _signed(scheme: Scheme) -> Scheme:
    """The same on NPUs whose activations are s8, which leaves 7 bits behind a relu."""

    def signed(qconfig: fq.QConfig) -> fq.QConfig:
        return fq.QConfig(activation=qconfig.activation.with_(signed=True), weight=qconfig.weight)

    return dataclasses.replace(scheme, post=signed(scheme.post), training=signed(scheme.training), target="npu")


_NPU = npu()
# as in the paper on TQT (arXiv 1903.08066): activations are unsigned behind a relu
UNSIGNED_NPU = dataclasses.replace(
    _NPU,
    name="npu, unsigned",
    activation=_NPU.activation.with_(signed=False),
    activations=dataclasses.replace(_NPU.activations, signed=False),
)
_BITS = {"W8A8": (8, 8), "W4A8": (4, 8), "W4A4": (4, 4)}
SCHEMES = {
    **{name: _float_scales(*bits) for name, bits in _BITS.items()},
    **{f"{name} power-of-two": _powers_of_two(*bits) for name, bits in _BITS.items()},
    "W8A8 power-of-two, signed": _signed(_powers_of_two(8, 8)),
}
