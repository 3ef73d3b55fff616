"""fxquant: graph-mode quantization for PyTorch. Any nn.Module in; a small, fast, accurate int8 model out."""

from __future__ import annotations

from fxquant import algorithms, templates
from fxquant.api import load, quantize, save
from fxquant.capture.symbolic.wrap import wrap
from fxquant.config.custom_config import ConvertCustomConfig, FuseCustomConfig, PrepareCustomConfig, QuantType
from fxquant.config.limits import Grids, Kernel, Position, Shapes
from fxquant.config.qconfig import QConfig
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.engines.engine import Engine
from fxquant.engines.native.settings import Native
from fxquant.errors import (
    ArchiveError,
    CalibrationError,
    CaptureError,
    ConfigError,
    FxQuantError,
    InputError,
    StageError,
    VerifyError,
)
from fxquant.export.executorch.export import ExecuTorchFile
from fxquant.exports import (
    dump_integers,
    export_executorch,
    export_json,
    export_onnx,
    export_pt2,
    integer_reference,
)
from fxquant.flows.calibrate import calibrate
from fxquant.flows.freezing import (
    FreezeSchedule,
    freeze_bn_stats,
    freeze_observers,
    unfreeze_bn_stats,
    unfreeze_observers,
)
from fxquant.flows.train import TrainResult, parameter_groups, train_qat
from fxquant.graph.boundary import Boundary, boundary_qparams
from fxquant.graph.grid import QParams
from fxquant.html_report.report import Report, report
from fxquant.insight.compare import compare
from fxquant.insight.comparison import Comparison
from fxquant.insight.forecast import Forecast, forecast
from fxquant.integers.reference import IntegerReference
from fxquant.precision.check import Check, check
from fxquant.precision.outputs import OutputRow
from fxquant.quantize_fx import convert_fx, convert_to_reference_fx, freeze, fuse_fx, prepare_fx, prepare_qat_fx
from fxquant.tables.benchmark import benchmark
from fxquant.tables.check_target import Violation, check_target
from fxquant.tables.explain import explain
from fxquant.tables.profile import profile
from fxquant.targets import set_march
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
from fxquant.targets.file import load_target
from fxquant.tuning.executors import Processes
from fxquant.tuning.plan import Plan
from fxquant.tuning.ray_executor import Ray
from fxquant.tuning.result import TuneResult
from fxquant.tuning.sensitivity import Sensitivity, sensitivity
from fxquant.tuning.trial import Trial
from fxquant.tuning.tune import tune

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "Boundary",
    "CalibrationError",
    "CaptureError",
    "Check",
    "Comparison",
    "ConfigError",
    "ConvertCustomConfig",
    "Engine",
    "ExecuTorchFile",
    "Forecast",
    "FreezeSchedule",
    "FuseCustomConfig",
    "FxQuantError",
    "Grids",
    "InputError",
    "IntegerReference",
    "Kernel",
    "Native",
    "OutputRow",
    "Plan",
    "Position",
    "PrepareCustomConfig",
    "Processes",
    "QConfig",
    "QConfigMapping",
    "QParams",
    "QuantType",
    "Ray",
    "Report",
    "Sensitivity",
    "Shapes",
    "Spec",
    "StageError",
    "Target",
    "TrainResult",
    "Trial",
    "TuneResult",
    "VerifyError",
    "Violation",
    "__version__",
    "algorithms",
    "benchmark",
    "boundary_qparams",
    "calibrate",
    "check",
    "check_target",
    "compare",
    "convert_fx",
    "convert_to_reference_fx",
    "default_dynamic_qconfig",
    "default_qconfig",
    "dump_integers",
    "explain",
    "export_executorch",
    "export_json",
    "export_onnx",
    "export_pt2",
    "forecast",
    "freeze",
    "freeze_bn_stats",
    "freeze_observers",
    "fuse_fx",
    "get_default_qat_qconfig",
    "get_default_qat_qconfig_mapping",
    "get_default_qconfig",
    "get_default_qconfig_mapping",
    "int4_weight_only_qconfig",
    "integer_reference",
    "load",
    "load_target",
    "parameter_groups",
    "prepare_fx",
    "prepare_qat_fx",
    "profile",
    "quantize",
    "report",
    "save",
    "sensitivity",
    "set_march",
    "templates",
    "train_qat",
    "tune",
    "unfreeze_bn_stats",
    "unfreeze_observers",
    "weight_only_qconfig",
    "wrap",
]
