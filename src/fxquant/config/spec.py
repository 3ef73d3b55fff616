"""How one tensor is quantized.

A `Spec` is a plain value. It fixes the integer grid [quant_min, quant_max], the storage dtype, and how the real
range is found; the scale and zero point themselves are found by an observer (or learned) and live elsewhere.

    q = clamp(round(x / scale) + zero_point, quant_min, quant_max)        x' = (q - zero_point) * scale
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fxquant.config.check_fields import check_fields
from fxquant.errors import ConfigError

Granularity = Literal["per_tensor", "per_channel", "per_group"]
ScaleKind = Literal["float", "pow2"]
Rounding = Literal["half_even", "half_up", "floor"]
ObserverKind = Literal["minmax", "moving_average", "percentile", "histogram", "entropy", "channels", "fixed", "custom"]
Learn = Literal["ste", "lsq", "lsq+", "tqt", "pact"]
Int32 = Literal["int32"]  # a bias as the accumulator holds it, at the scale of input times weight

MIN_BITS, MAX_BITS = 2, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """How a tensor is quantized. See the module docstring for the formula.

    `axis` is the channel axis for "per_channel" and the grouped axis for "per_group" is the last one, in runs of
    `group_size`. `learn` makes it a spec for training: "ste" trains through the rounding with observed ranges, the
    others learn the range too ("tqt" a power of two). `percentile` is used by that observer only, `range` by "fixed"
    only, `momentum` by "moving_average" only (with 0 the first range stays), `factory` by "custom" only: it makes an
    observer of the user's own, a module that is called with each batch and has a `calculate_qparams()`. `limits` are
    whole numbers inside of what the bits hold, such as (-127, 127); weights without any keep to those of the target. No
    scale is below `min_scale`.

    Example:
        >>> spec = fq.Spec(bits=4, granularity="per_channel", observer="minmax")
        >>> spec.quant_min, spec.quant_max, str(spec)
        (-8, 7, 's4 sym per_channel0 minmax')
    """

    bits: int = 8
    signed: bool = True
    symmetric: bool = True
    granularity: Granularity = "per_tensor"
    axis: int = 0
    group_size: int | None = None
    scale: ScaleKind = "float"
    rounding: Rounding = "half_even"
    dynamic: bool = False
    observer: ObserverKind = "histogram"
    learn: Learn | None = None
    percentile: float = 99.99
    momentum: float = 0.01
    range: tuple[float, float] | None = None
    limits: tuple[int, int] | None = None
    min_scale: float = 0.0
    factory: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise ConfigError(f"Spec(bits={self.bits!r}): expected a whole number from {MIN_BITS} to {MAX_BITS}.")
        if (self.granularity == "per_group") != (self.group_size is not None):
            raise ConfigError(
                f"Spec(granularity={self.granularity!r}, group_size={self.group_size!r}): "
                "'per_group' needs a group_size, and no other granularity takes one."
            )
        if self.group_size is not None and self.group_size < 1:
            raise ConfigError(f"Spec(group_size={self.group_size!r}): expected a positive whole number.")
        if (self.observer == "fixed") != (self.range is not None):
            raise ConfigError(
                f"Spec(observer={self.observer!r}, range={self.range!r}): "
                "'fixed' needs a range=(low, high), and no other observer takes one."
            )
        if (self.observer == "custom") != (self.factory is not None):
            raise ConfigError(
                f"Spec(observer={self.observer!r}, factory={self.factory!r}): "
                "'custom' needs a factory that makes the observer, and no other observer takes one."
            )
        if self.observer == "channels" and self.granularity != "per_channel":
            raise ConfigError(
                f"Spec(observer='channels', granularity={self.granularity!r}): it finds scales of channels, so "
                "granularity='per_channel' goes with it."
            )
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ConfigError(f"Spec(range={self.range!r}): expected (low, high) with low < high.")
        if not 50.0 < self.percentile <= 100.0:
            raise ConfigError(f"Spec(percentile={self.percentile!r}): expected a number above 50 and at most 100.")
        if not 0.0 <= self.momentum <= 1.0:
            raise ConfigError(f"Spec(momentum={self.momentum!r}): expected a number from 0 to 1.")
        if not 0.0 <= self.min_scale < math.inf:
            raise ConfigError(f"Spec(min_scale={self.min_scale!r}): expected a number from 0 on.")
        low, high = self._whole
        if self.limits is not None and not (low <= self.limits[0] <= 0 < self.limits[1] <= high):
            raise ConfigError(f"Spec(limits={self.limits!r}): expected (low, high) around 0, from {low} to {high}.")
        if self.dynamic and self.learn is not None:
            raise ConfigError("Spec(dynamic=True, learn=...): a range found at run time cannot be learned.")
        self._check_learn()

    def _check_learn(self) -> None:
        if self.learn == "tqt":
            object.__setattr__(self, "scale", "pow2")  # that is what it learns
            if not self.symmetric:
                raise ConfigError("Spec(learn='tqt', symmetric=False): tqt is for symmetric grids. Use symmetric=True.")
        elif self.scale == "pow2" and self.learn not in (None, "ste"):
            raise ConfigError(f"Spec(scale='pow2', learn={self.learn!r}): use 'tqt', which learns powers of two.")
        if self.learn not in (None, "ste") and (self.min_scale or self.factory is not None):
            what = "min_scale" if self.min_scale else "factory"
            raise ConfigError(f"Spec(learn={self.learn!r}, {what}=...): the range is learned. Leave {what} out.")
        if self.learn == "lsq+" and self.symmetric:
            raise ConfigError(
                "Spec(learn='lsq+', symmetric=True): lsq+ learns an offset. Use symmetric=False or 'lsq'."
            )

    @property
    def _whole(self) -> tuple[int, int]:
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.signed else (0, 2 * half - 1)

    @property
    def quant_min(self) -> int:
        return (self.limits or self._whole)[0]

    @property
    def quant_max(self) -> int:
        return (self.limits or self._whole)[1]

    @property
    def dtype(self) -> torch.dtype:
        """The smallest plain integer dtype that holds the grid."""
        if self.bits <= 8:
            return torch.int8 if self.signed else torch.uint8
        return torch.int16 if self.signed else torch.uint16

    def trained(self) -> Spec:
        """Return the same spec for training: straight through the rounding, unless it says how. Dynamic ones stay."""
        return self if self.dynamic or self.learn is not None else self.with_(learn="ste")

    def stored(self) -> Spec:
        """Return the same spec as a plain value.

        How the range was found by code of the user's does not matter any more.
        """
        return self if self.factory is None else self.with_(observer="minmax", factory=None)

    def with_(self, **changes: Any) -> Spec:
        """Return the same spec with some fields changed."""
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        """Short form for tables: `u8 asym per_tensor histogram`."""
        parts = [f"{'s' if self.signed else 'u'}{self.bits}", "sym" if self.symmetric else "asym"]
        if self.granularity == "per_group":
            parts.append(f"per_group{self.group_size}")
        elif self.granularity == "per_channel":
            parts.append(f"per_channel{self.axis}")
        else:
            parts.append("per_tensor")
        if self.limits is not None:
            parts.append(f"[{self.limits[0]}, {self.limits[1]}]")
        if self.scale == "pow2":
            parts.append("pow2")
        parts.append("dynamic" if self.dynamic else self.learn or self.observer)
        return " ".join(parts)
