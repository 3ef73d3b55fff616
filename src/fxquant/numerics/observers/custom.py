"""An observer of the user's own (Spec.factory) in the place of one of ours.

It is called with each batch as it is, and its `calculate_qparams()` gives scale and zero point, which are used as they
are: nothing is found again from a range.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.numerics.observers.base import Observer


class CustomObserver(Observer):
    """Runs `spec.factory()` on what it sees. Masks and NaN are looked for as everywhere."""

    inner: nn.Module

    def __init__(self, spec: Spec, name: str) -> None:
        super().__init__(spec, name)
        self.inner = make_inner(spec)

    def _observe(self, x: Tensor) -> bool:
        clean = self.clean(x)
        if clean is None:
            return False
        self.low, self.high = torch.minimum(self.low, clean[1]), torch.maximum(self.high, clean[2])
        self.inner(x)
        return True

    def qparams(self) -> tuple[Tensor, Tensor]:
        self._check_seen()
        return inner_qparams(self.inner, self.spec, self.name)

    def range(self) -> tuple[Tensor, Tensor]:
        scale, zero_point = self.qparams()
        return (self.spec.quant_min - zero_point) * scale, (self.spec.quant_max - zero_point) * scale

    def _merge(self, other: Self) -> None:
        raise ConfigError(
            f"tensor {self.name!r} is watched by {type(self.inner).__name__}, and what two of them saw cannot be put "
            "together. Calibrate in one process, or use a Spec for it."
        )


def make_inner(spec: Spec) -> nn.Module:
    """Return the user's observer."""
    assert spec.factory is not None
    made = spec.factory()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"Spec(factory=...) made a {type(made).__name__}. It has to make a module, the observer.")
    return made


@torch.no_grad()
def custom_qparams(x: Tensor, spec: Spec, name: str) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) of one tensor, such as a weight, by the user's observer."""
    inner = make_inner(spec).to(x.device)
    inner(x)
    return inner_qparams(inner, spec, name)


def inner_qparams(inner: Any, spec: Spec, name: str) -> tuple[Tensor, Tensor]:
    """Return what the user's observer says, in our shapes and dtypes; a ConfigError where its grid cannot hold it."""
    scale, zero_point = (torch.as_tensor(value).detach() for value in inner.calculate_qparams())
    shape = () if spec.granularity == "per_tensor" else (-1,)
    who = f"{type(inner).__name__}.calculate_qparams() for {name!r}"
    if spec.granularity == "per_tensor" and (scale.numel() != 1 or zero_point.numel() != 1):
        raise ConfigError(f"{who} gave {scale.numel()} scales for a per_tensor grid. Give the observer a qscheme.")
    scale, zero_point = scale.reshape(shape).to(torch.float32), zero_point.reshape(shape).round().to(torch.int32)
    if not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise ConfigError(f"{who} gave a scale that is not a positive number.")
    inside = (zero_point >= spec.quant_min) & (zero_point <= spec.quant_max)
    if not bool(inside.all()):
        raise ConfigError(f"{who} gave a zero point outside of its grid, {spec.quant_min} to {spec.quant_max}.")
    if spec.symmetric and spec.signed and bool(zero_point.any()):
        raise ConfigError(f"{who} gave a zero point, and its qscheme is symmetric. Use an affine qscheme.")
    return scale, zero_point
