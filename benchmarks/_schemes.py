"""The grids of the classification recipes: bits of weights and activations, with float and with power-of-two scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

import fxquant as fq


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """Grids for calibration and for training, and the target that has them (None: that of the engine)."""

    post: fq.QConfig
    training: fq.QConfig
    target: str | None = None

    def prepared(self, model: nn.Module, batches: Sequence[Tensor]) -> nn.Module:
        """Calibrated on these batches."""
        return fq.calibrate(fq.prepare_fx(model, {"": self.post}, (batches[0],), target=self.target), batches)

    def training_from(self, model: nn.Module, calibrated: nn.Module, example: Tensor) -> nn.Module:
        """The model for training, its ranges where calibration put them."""
        prepared = fq.prepare_qat_fx(model.train(), {"": self.training}, (example,), target=self.target)
        prepared.load_state_dict(calibrated.state_dict())
        return prepared


def _float_scales(weight_bits: int, bits: int) -> Scheme:
    """Zero points, a scale for each output channel of a weight; LSQ in training."""
    activation = fq.Spec(bits=bits, signed=False, symmetric=False)
    weight = fq.Spec(bits=weight_bits, granularity="per_channel")
    learned = fq.QConfig(activation=activation.with_(learn="lsq"), weight=weight.with_(learn="lsq"))
    return Scheme(post=fq.QConfig(activation=activation, weight=weight), training=learned)


def _powers_of_two(weight_bits: int, bits: int) -> Scheme:
    """One scale a tensor, no zero points, shifts that an NPU has; TQT in training."""
    post = fq.QConfig(activation=fq.Spec(bits=bits, scale="pow2"), weight=fq.Spec(bits=weight_bits, scale="pow2"))
    learned = fq.QConfig(activation=fq.Spec(bits=bits, learn="tqt"), weight=fq.Spec(bits=weight_bits, learn="tqt"))
    return Scheme(post=post, training=learned, target="npu")


_BITS = {"W8A8": (8, 8), "W4A8": (4, 8), "W4A4": (4, 4)}
SCHEMES = {
    **{name: _float_scales(*bits) for name, bits in _BITS.items()},
    **{f"{name} power-of-two": _powers_of_two(*bits) for name, bits in _BITS.items()},
}
