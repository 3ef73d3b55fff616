"""AMD Quark's names for its FX mode, over our own Spec and flow: its guides run with other import lines.

    from fxquant.compat.quark import Config, Dtype, ModelQuantizer, QuantizationConfig, QuantizationSpec

Both sets of names are here: those of 0.13 on (`QTensorConfig`, `QLayerConfig`, `QConfig`), and the older ones.
"""

from __future__ import annotations

from fxquant.compat.quark.config import (
    Config,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    QuantizationConfig,
    QuantizationSpec,
    TQTSpec,
)
from fxquant.compat.quark.observers import (
    LSQObserver,
    ObserverBase,
    PerChannelMinMaxObserver,
    PerChannelPowOf2MinMaxObserver,
    PerChannelPowOf2MinMSEObserver,
    PerGroupMinMaxObserver,
    PerTensorHistogramObserver,
    PerTensorHistogramObserverPro,
    PerTensorMinMaxObserver,
    PerTensorMSEObserver,
    PerTensorPercentileObserver,
    PerTensorPowOf2MinMaxObserver,
    PerTensorPowOf2MinMSEObserver,
    PlaceholderObserver,
    TQTObserver,
    UniformScalingObserver,
)
from fxquant.compat.quark.quantizer import (
    ExporterConfig,
    JsonExporterConfig,
    ModelExporter,
    ModelQuantizer,
    OnnxExporterConfig,
    export_onnx,
)
from fxquant.compat.quark.types import (
    Dtype,
    QSchemeType,
    QuantizationMode,
    RoundType,
    ScaleType,
    TQTThresholdInitMeth,
)

__all__ = [
    "Config",
    "Dtype",
    "ExporterConfig",
    "JsonExporterConfig",
    "LSQObserver",
    "ModelExporter",
    "ModelQuantizer",
    "ObserverBase",
    "OnnxExporterConfig",
    "PerChannelMinMaxObserver",
    "PerChannelPowOf2MinMSEObserver",
    "PerChannelPowOf2MinMaxObserver",
    "PerGroupMinMaxObserver",
    "PerTensorHistogramObserver",
    "PerTensorHistogramObserverPro",
    "PerTensorMSEObserver",
    "PerTensorMinMaxObserver",
    "PerTensorPercentileObserver",
    "PerTensorPowOf2MinMSEObserver",
    "PerTensorPowOf2MinMaxObserver",
    "PlaceholderObserver",
    "QConfig",
    "QLayerConfig",
    "QSchemeType",
    "QTensorConfig",
    "QuantizationConfig",
    "QuantizationMode",
    "QuantizationSpec",
    "RoundType",
    "ScaleType",
    "TQTObserver",
    "TQTSpec",
    "TQTThresholdInitMeth",
    "UniformScalingObserver",
    "export_onnx",
]
