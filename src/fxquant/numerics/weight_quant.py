"""The quantizer of a weight in training.

"ste" takes the range of the weight as it is now, the way conversion does (numerics/weights.py), so there is nothing to
observe and nothing to save. The others learn it, from a start at the first weight that they see: 2 mean|w| / sqrt(p)
for LSQ, the range of the spec's observer for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from fxquant.core.spec import Spec
from fxquant.numerics.affine import channel_axis, fake_quantize, quantize
from fxquant.numerics.buffers import own_tensors, restore_dtypes
from fxquant.numerics.learned import (
    add_parameters,
    is_started,
    learned_fake_quantize,
    learned_qparams,
    learns_range,
    start,
)
from fxquant.numerics.lsq import lsq_start
from fxquant.numerics.straight_through import straight_through
from fxquant.numerics.switches import Switched
from fxquant.numerics.weights import check_weight, weight_qparams, weight_range


class WeightQuant(Switched):
    """Rounds a weight to the grid of its spec, with gradients.

    A range that is not learned is that of the weight as it is now, as in conversion: `disable_observer` leaves it so.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, spec: Spec, name: str, shape: torch.Size) -> None:
        super().__init__()
        self.spec = spec
        self.name = name
        self.ready = False
        self.frozen = False
        if learns_range(spec):
            add_parameters(self, spec, scale_shape(spec, shape))

    def forward(self, weight: Tensor) -> Tensor:
        if not self.rounding:
            return weight
        if self.frozen:
            return fake_quantize(weight, self.scale, self.zero_point, self.spec)
        if not learns_range(self.spec):
            return straight_through(weight, *self.compute_qparams(weight), self.spec)
        self._start(weight)
        return learned_fake_quantize(self, weight, self.spec)

    def _start(self, weight: Tensor) -> None:
        if self.ready:
            return
        if not is_started(self, self.spec):
            step = lsq_start(weight, self.spec) if self.spec.learn == "lsq" and self.spec.symmetric else None
            start(self, self.spec, *_range(weight, self.spec), step=step)
        self.ready = True

    @torch.no_grad()
    def compute_qparams(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(scale, zero_point) for this weight, found or learned."""
        if self.frozen:
            return self.scale, self.zero_point
        if not learns_range(self.spec):
            return weight_qparams(weight.detach().float(), self.spec, self.name)
        self._start(weight)
        return learned_qparams(self, self.spec)

    @torch.no_grad()
    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(q, scale, zero_point): the integers of the values that `forward` gives."""
        scale, zero_point = self.compute_qparams(weight)
        return quantize(weight.detach().float(), scale, zero_point, self.spec), scale, zero_point

    def freeze(self, weight: Tensor) -> None:
        """Fix scale and zero point."""
        check_weight(weight, self.spec, self.name)
        scale, zero_point = self.compute_qparams(weight)
        self._parameters.clear()
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)
        self.frozen = self.rounding = True

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = own_tensors(self)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        restore_dtypes(self, before)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        self.ready = False
        super()._load_from_state_dict(*args)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.spec}"


def scale_shape(spec: Spec, shape: torch.Size) -> tuple[int, ...]:
    """The shape of the scale of a weight."""
    if spec.granularity == "per_tensor":
        return ()
    if spec.group_size is not None:
        return (*shape[:-1], shape[-1] // spec.group_size)
    return (shape[channel_axis(torch.empty(shape, device="meta"), spec)],)


def _range(weight: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    return weight_range(weight.detach().float(), spec)
