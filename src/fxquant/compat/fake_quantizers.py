"""torch.ao's fake-quantize modules by name: our quantizer with a spec that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxquant.compat.observers import (
    FixedQParamsObserver,
    HistogramObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
)
from fxquant.config.read_observer import read_factory
from fxquant.config.spec import Learn, Spec
from fxquant.errors import ConfigError
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.standalone import WithArgs, torch_names
from fxquant.numerics.switches import Switched

FakeQuantizeBase = Switched


class FakeQuantize(WithArgs, FakeQuant):
    """Rounds to the grid of an observer, straight through for gradients."""

    def __init__(
        self,
        observer: Callable[..., object] = MovingAverageMinMaxObserver,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_dynamic: bool = False,
        **observer_kwargs: Any,
    ) -> None:
        if quant_min is not None or quant_max is not None:
            observer_kwargs |= {"quant_min": quant_min, "quant_max": quant_max}
        if is_dynamic:
            observer_kwargs["is_dynamic"] = True
        spec = read_factory(lambda: observer(**observer_kwargs), type(self).__name__)
        if not isinstance(spec, Spec):
            raise ConfigError(f"{type(self).__name__}(observer={observer!r}): the observer has no grid to round to.")
        super().__init__(spec if spec.dynamic else spec.with_(learn=self._learn(spec)), type(self).__name__)
        self.__dict__.update(torch_names(spec), dtype=observer_kwargs.get("dtype", torch_names(spec)["dtype"]))

    def _learn(self, spec: Spec) -> Learn:
        return "ste"


class FusedMovingAvgObsFakeQuantize(FakeQuantize):
    """The same on a moving average; ours is one step in any case."""

    def __init__(
        self,
        observer: Callable[..., object] = MovingAverageMinMaxObserver,
        quant_min: int = 0,
        quant_max: int = 255,
        **observer_kwargs: Any,
    ) -> None:
        super().__init__(observer, quant_min, quant_max, **observer_kwargs)
        if self.spec.observer != "moving_average" and not self.spec.dynamic:
            raise ConfigError("FusedMovingAvgObsFakeQuantize takes moving averages. Use FakeQuantize for others.")


class FixedQParamsFakeQuantize(FakeQuantize):
    """On a grid that is known."""

    def __init__(self, observer: Callable[..., object]) -> None:
        super().__init__(observer)
        if self.spec.observer != "fixed":
            raise ConfigError(f"FixedQParamsFakeQuantize takes a {FixedQParamsObserver.__name__}.")


class LearnableFakeQuantize(FakeQuantize):
    """Learns its range: LSQ on symmetric grids, LSQ+ on others.

    It starts from the data, and gradients to the range are scaled by the number of elements, as LSQ has it.
    """

    def __init__(
        self,
        observer: Callable[..., object],
        quant_min: int = 0,
        quant_max: int = 255,
        scale: float = 1.0,
        zero_point: float = 0.0,
        channel_len: int = -1,
        use_grad_scaling: bool = True,
        **observer_kwargs: Any,
    ) -> None:
        if scale != 1.0 or zero_point != 0.0:
            raise ConfigError("LearnableFakeQuantize: the range starts from the data. Leave scale and zero_point out.")
        super().__init__(observer, quant_min, quant_max, **observer_kwargs)

    def _learn(self, spec: Spec) -> Learn:
        return "lsq" if spec.symmetric else "lsq+"


_ACT = {"quant_min": 0, "quant_max": 255, "dtype": torch.quint8}
_WEIGHT = {"quant_min": -128, "quant_max": 127, "dtype": torch.qint8}
_NARROW = {"quant_min": -127, "quant_max": 127, "dtype": torch.qint8, "eps": 2**-12}
_SYMMETRIC = {"qscheme": torch.per_tensor_symmetric}
_CHANNELS = {"observer": MovingAveragePerChannelMinMaxObserver, "qscheme": torch.per_channel_symmetric}
_EMBEDDING = {
    "observer": MovingAveragePerChannelMinMaxObserver,
    "qscheme": torch.per_channel_affine_float_qparams,
    "ch_axis": 0,
    "averaging_constant": 1,
}

default_fake_quant = FakeQuantize.with_args(**_ACT, qscheme=torch.per_tensor_affine, reduce_range=True)
default_weight_fake_quant = FakeQuantize.with_args(**_WEIGHT, **_SYMMETRIC, reduce_range=False)
default_dynamic_fake_quant = FakeQuantize.with_args(**_ACT, is_dynamic=True, averaging_constant=1)
default_fixed_qparams_range_neg1to1_fake_quant = FixedQParamsFakeQuantize.with_args(
    observer=default_fixed_qparams_range_neg1to1_observer
)
default_fixed_qparams_range_0to1_fake_quant = FixedQParamsFakeQuantize.with_args(
    observer=default_fixed_qparams_range_0to1_observer
)
default_symmetric_fixed_qparams_fake_quant = default_fixed_qparams_range_neg1to1_fake_quant
default_affine_fixed_qparams_fake_quant = default_fixed_qparams_range_0to1_fake_quant
default_per_channel_weight_fake_quant = FakeQuantize.with_args(**_WEIGHT, **_CHANNELS, reduce_range=False, ch_axis=0)
default_embedding_fake_quant = FakeQuantize.with_args(**_ACT, **_EMBEDDING)
default_embedding_fake_quant_4bit = FakeQuantize.with_args(**_EMBEDDING, dtype=torch.quint4x2)
default_histogram_fake_quant = FakeQuantize.with_args(observer=HistogramObserver, **_ACT, reduce_range=True)
default_fused_act_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(**_ACT)
default_fused_wt_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(**_WEIGHT, **_SYMMETRIC)
default_fused_per_channel_wt_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(**_WEIGHT, **_CHANNELS)
fused_wt_fake_quant_range_neg_127_to_127 = FusedMovingAvgObsFakeQuantize.with_args(**_NARROW, **_SYMMETRIC)
fused_per_channel_wt_fake_quant_range_neg_127_to_127 = FusedMovingAvgObsFakeQuantize.with_args(**_NARROW, **_CHANNELS)
