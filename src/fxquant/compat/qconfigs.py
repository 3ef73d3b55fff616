"""torch.ao's qconfigs by name, with the meaning that they have there."""

from __future__ import annotations

import torch

from fxquant.compat.fake_quantizers import (
    FusedMovingAvgObsFakeQuantize,
    default_dynamic_fake_quant,
    default_embedding_fake_quant,
    default_embedding_fake_quant_4bit,
    default_fake_quant,
    default_fused_act_fake_quant,
    default_fused_wt_fake_quant,
    default_weight_fake_quant,
    fused_per_channel_wt_fake_quant_range_neg_127_to_127,
    fused_wt_fake_quant_range_neg_127_to_127,
)
from fxquant.compat.observers import (
    HistogramObserver,
    MinMaxObserver,
    NoopObserver,
    PlaceholderObserver,
    ReuseInputObserver,
    default_dynamic_quant_observer,
    default_float_qparams_observer,
    default_float_qparams_observer_4bit,
    default_observer,
    default_per_channel_weight_observer,
    default_weight_observer,
    per_channel_weight_observer_range_neg_127_to_127,
    weight_observer_range_neg_127_to_127,
)
from fxquant.config.qconfig import QConfig, as_qconfig
from fxquant.targets.defaults import get_default_qat_qconfig_mapping, get_default_qconfig_mapping

QConfigAny = QConfig | None

_SIGNED = HistogramObserver.with_args(dtype=torch.qint8, reduce_range=False, eps=2**-12)
_SIGNED_QAT = FusedMovingAvgObsFakeQuantize.with_args(quant_min=-128, quant_max=127, dtype=torch.qint8, eps=2**-12)
_FLOAT16 = PlaceholderObserver.with_args(dtype=torch.float16)
_FLOAT32 = NoopObserver.with_args(dtype=torch.float32)


def _qconfig(activation: object, weight: object) -> QConfig:
    return QConfig(activation, weight)  # type: ignore[arg-type]  # factories are read as specs


default_qconfig = _qconfig(default_observer, default_weight_observer)
default_per_channel_qconfig = _qconfig(default_observer, default_per_channel_weight_observer)
default_dynamic_qconfig = _qconfig(default_dynamic_quant_observer, default_weight_observer)
per_channel_dynamic_qconfig = _qconfig(default_dynamic_quant_observer, default_per_channel_weight_observer)
float16_dynamic_qconfig = _qconfig(PlaceholderObserver.with_args(dtype=torch.float16, is_dynamic=True), _FLOAT16)
float16_static_qconfig = _qconfig(_FLOAT16, _FLOAT16)
float_qparams_weight_only_qconfig = _qconfig(PlaceholderObserver, default_float_qparams_observer)
float_qparams_weight_only_qconfig_4bit = _qconfig(PlaceholderObserver, default_float_qparams_observer_4bit)
default_qat_qconfig = _qconfig(default_fake_quant, default_weight_fake_quant)
default_qat_qconfig_v2 = _qconfig(default_fused_act_fake_quant, default_fused_wt_fake_quant)
default_dynamic_qat_qconfig = _qconfig(default_dynamic_fake_quant, default_weight_fake_quant)
default_weight_only_qconfig = _qconfig(torch.nn.Identity, default_weight_fake_quant)
default_activation_only_qconfig = _qconfig(default_fake_quant, torch.nn.Identity)
default_reuse_input_qconfig = _qconfig(ReuseInputObserver, NoopObserver)
default_quint8_weight_qconfig = _qconfig(HistogramObserver, MinMaxObserver)
default_symmetric_qnnpack_qconfig = _qconfig(_SIGNED, weight_observer_range_neg_127_to_127)
default_per_channel_symmetric_qnnpack_qconfig = _qconfig(_SIGNED, per_channel_weight_observer_range_neg_127_to_127)
default_symmetric_qnnpack_qat_qconfig = _qconfig(_SIGNED_QAT, fused_wt_fake_quant_range_neg_127_to_127)
default_per_channel_symmetric_qnnpack_qat_qconfig = _qconfig(
    _SIGNED_QAT, fused_per_channel_wt_fake_quant_range_neg_127_to_127
)
default_embedding_qat_qconfig = _qconfig(_FLOAT32, default_embedding_fake_quant)
default_embedding_qat_qconfig_4bit = _qconfig(_FLOAT32, default_embedding_fake_quant_4bit)


def QConfigDynamic(activation: object = torch.nn.Identity, weight: object = torch.nn.Identity) -> QConfig:
    """Return a dynamic QConfig; without an activation, uint8 on a range that is found at run time."""
    given = _qconfig(activation, weight)
    found = given if given.activation is not None else _qconfig(default_dynamic_quant_observer, given.weight)
    return given if given.weight == "float16" else found


def qconfig_equals(q1: object, q2: object) -> bool:
    """Tell whether two qconfigs mean the same."""
    return as_qconfig(q1) == as_qconfig(q2)


def get_default_qconfig_dict(backend: str = "x86", version: int = 0) -> dict[str, object]:
    """`get_default_qconfig_mapping` as a dict."""
    return get_default_qconfig_mapping(backend, version).to_dict()


def get_default_qat_qconfig_dict(backend: str = "x86", version: int = 1) -> dict[str, object]:
    """`get_default_qat_qconfig_mapping` as a dict."""
    return get_default_qat_qconfig_mapping(backend, version).to_dict()
