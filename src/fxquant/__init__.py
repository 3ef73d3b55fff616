"""fxquant: graph-mode quantization for PyTorch. Any nn.Module in; a small, fast, accurate int8 model out."""

from __future__ import annotations

from fxquant.api import load, quantize, save
from fxquant.capture.wrap import wrap
from fxquant.core.boundary import Boundary, QParams, boundary_qparams
from fxquant.core.custom_config import ConvertCustomConfig, FuseCustomConfig, PrepareCustomConfig, QuantType
from fxquant.core.qconfig import QConfig
from fxquant.core.qconfig_mapping import QConfigMapping
from fxquant.core.spec import Spec
from fxquant.core.target import Target
from fxquant.engines.native.settings import Native
from fxquant.errors import (
    ArchiveError,
    CalibrationError,
    CaptureError,
    ConfigError,
    FxQuantError,
    StageError,
    VerifyError,
)
from fxquant.export.onnx import export_onnx
from fxquant.flows.calibrate import calibrate
from fxquant.flows.freezing import (
    FreezeSchedule,
    freeze_bn_stats,
    freeze_observers,
    unfreeze_bn_stats,
    unfreeze_observers,
)
from fxquant.flows.train import TrainResult, parameter_groups, train_qat
from fxquant.quantize_fx import convert_fx, convert_to_reference_fx, freeze, fuse_fx, prepare_fx, prepare_qat_fx
from fxquant.report.benchmark import benchmark
from fxquant.report.explain import explain
from fxquant.report.profile import profile
from fxquant.targets.defaults import (
    default_dynamic_qconfig,
    default_qconfig,
    get_default_qat_qconfig,
    get_default_qat_qconfig_mapping,
    get_default_qconfig,
    get_default_qconfig_mapping,
    int4_weight_only_qconfig,
    weight_only_qconfig,
)

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "Boundary",
    "CalibrationError",
    "CaptureError",
    "ConfigError",
    "ConvertCustomConfig",
    "FreezeSchedule",
    "FuseCustomConfig",
    "FxQuantError",
    "Native",
    "PrepareCustomConfig",
    "QConfig",
    "QConfigMapping",
    "QParams",
    "QuantType",
    "Spec",
    "StageError",
    "Target",
    "TrainResult",
    "VerifyError",
    "__version__",
    "benchmark",
    "boundary_qparams",
    "calibrate",
    "convert_fx",
    "convert_to_reference_fx",
    "default_dynamic_qconfig",
    "default_qconfig",
    "explain",
    "export_onnx",
    "freeze",
    "freeze_bn_stats",
    "freeze_observers",
    "fuse_fx",
    "get_default_qat_qconfig",
    "get_default_qat_qconfig_mapping",
    "get_default_qconfig",
    "get_default_qconfig_mapping",
    "int4_weight_only_qconfig",
    "load",
    "parameter_groups",
    "prepare_fx",
    "prepare_qat_fx",
    "profile",
    "quantize",
    "save",
    "train_qat",
    "unfreeze_bn_stats",
    "unfreeze_observers",
    "weight_only_qconfig",
    "wrap",
]
