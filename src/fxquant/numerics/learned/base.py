"""What a way to learn a range is: an object without state. Its parameters live on the quantizer that owns them.

    parameters(shape)             what is trained, by name, at the values that say "not started"
    start(own, scale, zero)       the first values, from the grid of a range (calibration, the first batch)
    qparams(own, spec)            scale and zero point, as integers would be stored with now
    fake_quantize(own, x, spec)   x on the grid, with gradients to x and to the parameters

`own` are the tensors of the owner by name. "Not started" is a value of the parameter itself, so it goes along with
checkpoints, averaged copies and broadcasts. The names are keys of state dicts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.affine import MIN_SCALE
from fxquant.numerics.learned.autograd_context import SavedFactor

Own = Mapping[str, Tensor]
_OCTAVES = 8.0  # of the base


class Learned(ABC):
    """A scale that is learned, as its logarithm, with a zero point that stays where it starts."""

    name: str = "log_scale"  # of the parameter that says whether it started
    unset: float = -math.inf

    def parameters(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Return what is trained, not started."""
        return {self.name: torch.full(shape, self.unset)}

    def buffers(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """What stays. A zero point is a whole number kept as a float: averaged copies would round an integer wrong."""
        return {"zero_point": torch.zeros(shape)}

    def is_started(self, own: Own) -> bool:
        """Tell whether there is a first value."""
        return not bool((own[self.name] == self.unset).all())

    def log_size(self, log2: Tensor) -> Tensor:
        """log2 of a factor, in the unit of what is learned."""
        return log2 / _OCTAVES

    def starting(self, spec: Spec) -> Spec:
        """Tell how the range is found from which a weight starts."""
        return spec

    def start(self, own: Own, scale: Tensor, zero_point: Tensor, spec: Spec) -> None:
        """Set the first values."""
        put(own[self.name], log_of(scale))
        put(own["zero_point"], zero_point)

    def qparams(self, own: Own, spec: Spec) -> tuple[Tensor, Tensor]:
        """(scale, zero_point) now."""
        return scale_of(own[self.name].detach().float()), whole(own["zero_point"])

    @abstractmethod
    def fake_quantize(self, own: Own, x: Tensor, spec: Spec) -> Tensor:
        """x on the learned grid, with gradients."""


def scale_of(log_scale: Tensor) -> Tensor:
    """256^u, kept where its inverse is finite."""
    return (log_scale * _OCTAVES).exp2().clamp(MIN_SCALE, 1.0 / MIN_SCALE)


def log_of(scale: Tensor) -> Tensor:
    """u for which 256^u is the scale."""
    return scale.log2() / _OCTAVES


def relative_scale(log_scale: Tensor, factor: float) -> Tensor:
    """256^u, whose gradient moves u by what a step along `factor` times the gradient to s itself moves log256 s.

    With G = factor * (the gradient to s), plain descent has ds = -r G at a rate r. The same step in u = log256 s is
    du = ds / (s ln 256), so u gets G / (s ln 256). Plain descent then does what it does on s, while Adam, which keeps
    the direction only, moves every scale by the same share of its size, however small it is: by half a percent at a
    rate of 1e-3, about the share by which it moves weights. That is why the base is 256.
    """
    result: Tensor = _RelativeScale.apply(log_scale, factor)  # type: ignore[no-untyped-call]
    return result


class _RelativeScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: SavedFactor, log_scale: Tensor, factor: float) -> Tensor:
        scale = scale_of(log_scale)
        ctx.factor = factor
        ctx.save_for_backward(scale)
        return scale

    @staticmethod
    def backward(ctx: SavedFactor, grad: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return grad * (ctx.factor / math.log(2.0**_OCTAVES)) / scale, None


def whole(zero_point: Tensor) -> Tensor:
    """Return a zero point that is kept as a float, as an integer."""
    return zero_point.round().to(torch.int32)


def put(tensor: Tensor, value: Tensor) -> None:
    """Write a first value into a parameter or buffer."""
    tensor.data.copy_(value.to(tensor.dtype).expand(tensor.shape))
