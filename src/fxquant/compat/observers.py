"""torch.ao's observers by name: each is a Spec, and one of our observers when it is called.

Every argument is honoured or refused. As there, `MinMaxObserver.with_args(...)` is what a QConfig takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.config.read_observer import DEFAULT_EPS, Read, passing, spec_of
from fxquant.config.spec import ObserverKind
from fxquant.errors import ConfigError, StageError
from fxquant.numerics.observers.bins import BINS
from fxquant.numerics.observers.standalone import ObserverBase, StandaloneObserver


class UniformQuantizationObserverBase(StandaloneObserver):
    """Base of the observers with a scale and a zero point."""

    kind: ObserverKind = "minmax"

    def __init__(
        self,
        dtype: torch.dtype = torch.quint8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, object] | None = None,
        eps: float = DEFAULT_EPS,
        is_dynamic: bool = False,
        *,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
    ) -> None:
        name = type(self).__name__
        if set(factory_kwargs or {}) - {"device"}:  # an observer follows the device of what it sees
            raise ConfigError(f"{name}(factory_kwargs={factory_kwargs}): ranges are float32. Leave the dtype out.")
        spec = spec_of(
            self.kind,
            dtype,
            where=name,
            qscheme=qscheme,
            quant_min=quant_min,
            quant_max=quant_max,
            reduce_range=reduce_range,
            ch_axis=ch_axis,
            eps=eps,
            averaging_constant=averaging_constant,
            is_dynamic=is_dynamic,
        )
        super().__init__(spec, dtype)
        self.qscheme, self.reduce_range, self.eps = qscheme, reduce_range, torch.tensor([eps])


class MinMaxObserver(UniformQuantizationObserverBase):
    """The extremes of all data."""

    def __init__(self, dtype: torch.dtype = torch.quint8, *args: Any, **kwargs: Any) -> None:
        _refuse(kwargs, "ch_axis", "averaging_constant", owner=type(self))
        super().__init__(dtype, *args, **kwargs)
        _need(self, per_channel=False)


class MovingAverageMinMaxObserver(UniformQuantizationObserverBase):
    """A moving average of the extremes of each batch."""

    kind: ObserverKind = "moving_average"

    def __init__(self, averaging_constant: float = 0.01, *args: Any, **kwargs: Any) -> None:
        _refuse(kwargs, "ch_axis", owner=type(self))
        super().__init__(*args, averaging_constant=averaging_constant, **kwargs)
        self.averaging_constant = averaging_constant
        _need(self, per_channel=False)


class PerChannelMinMaxObserver(UniformQuantizationObserverBase):
    """The extremes of each channel."""

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.quint8,
        qscheme: torch.qscheme = torch.per_channel_affine,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        _refuse(kwargs, "averaging_constant", owner=type(self))
        super().__init__(dtype, qscheme, *args, ch_axis=ch_axis, **kwargs)
        _need(self, per_channel=True)


class MovingAveragePerChannelMinMaxObserver(UniformQuantizationObserverBase):
    """A moving average of the extremes of each channel."""

    kind: ObserverKind = "moving_average"

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.quint8,
        qscheme: torch.qscheme = torch.per_channel_affine,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype, qscheme, *args, averaging_constant=averaging_constant, ch_axis=ch_axis, **kwargs)
        self.averaging_constant = averaging_constant
        _need(self, per_channel=True)


class HistogramObserver(UniformQuantizationObserverBase):
    """The range with the least squared error, from a histogram."""

    kind: ObserverKind = "histogram"

    def __init__(self, bins: int = BINS, *args: Any, **kwargs: Any) -> None:
        _refuse(kwargs, "ch_axis", "averaging_constant", owner=type(self))
        if bins != BINS:
            raise ConfigError(f"HistogramObserver(bins={bins}): histograms have {BINS} bins here. Leave it out.")
        super().__init__(*args, **kwargs)
        _need(self, per_channel=False)
        if self.is_dynamic:
            raise ConfigError("HistogramObserver(is_dynamic=True): a histogram is not made at run time.")


class FixedQParamsObserver(StandaloneObserver):
    """A scale and zero point that are known."""

    def __init__(
        self,
        scale: float,
        zero_point: int,
        dtype: torch.dtype = torch.quint8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        quant_min: int = 0,
        quant_max: int = 255,
        is_dynamic: bool = False,
    ) -> None:
        fixed = (float(scale), int(zero_point))
        name = type(self).__name__
        if is_dynamic or qscheme != torch.per_tensor_affine:
            raise ConfigError(f"{name}: a fixed grid is per_tensor_affine and not dynamic.")
        spec = spec_of("fixed", dtype, where=name, fixed=fixed, quant_min=quant_min, quant_max=quant_max)
        super().__init__(spec, dtype)
        self.register_buffer("scale", torch.tensor([fixed[0]]))
        self.register_buffer("zero_point", torch.tensor([fixed[1]]))


class _Passing(ObserverBase):
    """Looks at nothing."""

    spec: Read

    def forward(self, x: Tensor) -> Tensor:
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        raise StageError(f"{type(self).__name__} looks at nothing, so it has no scale.")


class PlaceholderObserver(_Passing):
    """No range: float32, float16, or integers on a range that is found at run time."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        custom_op_name: str = "",
        compute_dtype: torch.dtype | None = None,
        quant_min: int | None = None,
        quant_max: int | None = None,
        qscheme: torch.qscheme | None = None,
        eps: float | None = None,
        is_dynamic: bool = False,
    ) -> None:
        name = type(self).__name__
        if custom_op_name:
            raise ConfigError(f"{name}(custom_op_name={custom_op_name!r}): the op table knows ops. Leave it out.")
        super().__init__(dtype, is_dynamic or compute_dtype is not None)
        wanted = compute_dtype or dtype
        self.qscheme, self.quant_min, self.quant_max, self.eps = qscheme, quant_min, quant_max, eps
        if self.is_dynamic and wanted not in (torch.float16, torch.float32):
            limits = {"quant_min": quant_min, "quant_max": quant_max, "eps": eps, "qscheme": qscheme}
            self.spec = spec_of("minmax", wanted, where=name, is_dynamic=True, **limits)  # type: ignore[arg-type]
        else:
            self.spec = passing(wanted, name)


class NoopObserver(_Passing):
    """No range: float32 or float16."""

    def __init__(self, dtype: torch.dtype = torch.float16, custom_op_name: str = "") -> None:
        if custom_op_name:
            raise ConfigError(f"NoopObserver(custom_op_name={custom_op_name!r}): leave it out.")
        super().__init__(dtype)
        self.spec = passing(dtype, type(self).__name__)


class ReuseInputObserver(_Passing):
    """The grid of the input, which ops that move tensors have in any case."""

    def __init__(self) -> None:
        super().__init__(torch.quint8)
        self.spec = spec_of("minmax", torch.quint8, where=type(self).__name__)


class RecordingObserver(ObserverBase):
    """Keeps every tensor, to look at; not for a QConfig."""

    def __init__(self, dtype: torch.dtype = torch.quint8) -> None:
        super().__init__(dtype)
        self.tensor_val: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.tensor_val.append(x.clone())
        return x

    def get_tensor_value(self) -> list[Tensor]:
        return self.tensor_val

    @property
    def spec(self) -> Read:
        raise ConfigError("RecordingObserver keeps tensors and finds no range. Use it by itself, or another observer.")


def _refuse(kwargs: dict[str, object], *names: str, owner: type) -> None:
    for name in names:
        if name in kwargs:
            raise ConfigError(f"{owner.__name__} has no argument {name!r}.")


def _need(observer: UniformQuantizationObserverBase, *, per_channel: bool) -> None:
    if ("per_channel" in str(observer.qscheme)) != per_channel:
        wanted = "per_channel" if per_channel else "per_tensor"
        raise ConfigError(f"{type(observer).__name__}(qscheme={observer.qscheme}): expected a {wanted} scheme.")


_WEIGHT = {"dtype": torch.qint8, "qscheme": torch.per_tensor_symmetric}
_CHANNELS = {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric}
_NARROW = {"quant_min": -127, "quant_max": 127, "eps": 2**-12}
_FLOAT_QPARAMS = {"qscheme": torch.per_channel_affine_float_qparams, "ch_axis": 0}

default_observer = MinMaxObserver.with_args(quant_min=0, quant_max=127)
default_placeholder_observer = PlaceholderObserver
default_debug_observer = RecordingObserver
default_weight_observer = MinMaxObserver.with_args(**_WEIGHT)
weight_observer_range_neg_127_to_127 = MinMaxObserver.with_args(**_WEIGHT, **_NARROW)
default_histogram_observer = HistogramObserver.with_args(quant_min=0, quant_max=127)
default_per_channel_weight_observer = PerChannelMinMaxObserver.with_args(**_CHANNELS)
per_channel_weight_observer_range_neg_127_to_127 = PerChannelMinMaxObserver.with_args(**_CHANNELS, **_NARROW)
default_dynamic_quant_observer = PlaceholderObserver.with_args(
    dtype=torch.quint8, quant_min=0, quant_max=255, is_dynamic=True
)
default_float_qparams_observer = PerChannelMinMaxObserver.with_args(dtype=torch.quint8, **_FLOAT_QPARAMS)
default_float_qparams_observer_4bit = PerChannelMinMaxObserver.with_args(dtype=torch.quint4x2, **_FLOAT_QPARAMS)
default_fixed_qparams_range_neg1to1_observer = FixedQParamsObserver.with_args(scale=2.0 / 256.0, zero_point=128)
default_fixed_qparams_range_0to1_observer = FixedQParamsObserver.with_args(scale=1.0 / 256.0, zero_point=0)
default_symmetric_fixed_qparams_observer = default_fixed_qparams_range_neg1to1_observer
default_affine_fixed_qparams_observer = default_fixed_qparams_range_0to1_observer
default_reuse_input_observer = ReuseInputObserver
