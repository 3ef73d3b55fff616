"""Quark's configs of tensors, layers and models, as rules and a target of ours."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from fxquant.compat.quark.observers import ObserverBase, PerTensorMinMaxObserver
from fxquant.compat.quark.types import Dtype, QSchemeType, QuantizationMode, RoundType, ScaleType, TQTThresholdInitMeth
from fxquant.config.check_fields import check_fields
from fxquant.config.qconfig import QConfig as Chosen
from fxquant.config.spec import Int32, Learn, Spec
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.targets.npu import npu
from fxquant.targets.x86 import x86


@dataclass(frozen=True)
class TQTSpec:
    """Settings of TQT."""

    threshold_init_meth: TQTThresholdInitMeth = TQTThresholdInitMeth._3SD


_ROUNDING = {RoundType.half_even: "half_even", RoundType.round: "half_up", RoundType.floor: "floor"}


@dataclass(frozen=True, kw_only=True)
class QTensorConfig:
    """How one tensor is quantized, in Quark's words."""

    dtype: Dtype
    observer_cls: type[ObserverBase] | None = None
    is_dynamic: bool | None = None
    qscheme: QSchemeType | None = None
    ch_axis: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    round_method: RoundType | None = None
    scale_type: ScaleType | None = None
    qat_spec: TQTSpec | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        scheme = self.observer_cls.scheme if self.observer_cls is not None else None
        if self.qscheme is not None and scheme is not None and scheme is not self.qscheme:
            raise ConfigError(
                f"QuantizationSpec(qscheme={self.qscheme.name}, observer_cls={_name(self.observer_cls)}): the observer "
                f"is for {scheme.name}. Use one of the same scheme."
            )
        self.spec()  # raises now what could not be used later

    def spec(self, *, training: bool = False) -> Spec | Int32 | None:
        """Our Spec that says the same; None for float16."""
        if self.dtype is Dtype.float16:
            return None
        if self.dtype is Dtype.int32:
            return "int32"
        observer = self.observer_cls or PerTensorMinMaxObserver
        pow2 = observer.pow2 or self.scale_type is ScaleType.pof2
        scheme = self.qscheme or observer.scheme or QSchemeType.per_tensor
        dynamic = bool(self.is_dynamic)
        learn: Learn | None = observer.learn if training and not dynamic else None
        if learn == "lsq" and pow2:
            learn = "tqt"  # lsq learns a float scale
        digits = "".join(filter(str.isdigit, self.dtype.name))
        signed = not self.dtype.name.startswith("u")
        return Spec(
            bits=int(digits),
            signed=signed,
            symmetric=signed if self.symmetric is None else self.symmetric,
            granularity=scheme.value,
            axis=(self.ch_axis or 0) if scheme is QSchemeType.per_channel else 0,
            group_size=self.group_size if scheme is QSchemeType.per_group else None,
            scale="pow2" if pow2 else "float",
            rounding=_ROUNDING[self.round_method or RoundType.half_even],  # type: ignore[arg-type]
            dynamic=dynamic,
            observer="minmax" if observer.observer == "percentile" and dynamic else observer.observer,
            learn=learn,
        )


def _name(cls: type | None) -> str:
    return cls.__name__ if cls is not None else "None"


@dataclass(frozen=True, kw_only=True)
class QLayerConfig:
    """The tensors of a layer. A list stands for the first of it, as Quark's FX mode reads it."""

    input_tensors: QTensorConfig | list[QTensorConfig] | None = None
    output_tensors: QTensorConfig | list[QTensorConfig] | None = None
    weight: QTensorConfig | list[QTensorConfig] | None = None
    bias: QTensorConfig | list[QTensorConfig] | None = None
    target_device: object = None

    def __post_init__(self) -> None:
        check_fields(self)

    def chosen(self, *, training: bool) -> Chosen:
        """Our QConfig that says the same."""
        given = [self._one(name) for name in ("input_tensors", "output_tensors", "weight", "bias")]
        read = [None if one is None else one.spec(training=training) for one in given]
        inputs, outputs, weight, bias = read
        if "int32" in (inputs, outputs, weight):
            raise ConfigError("QuantizationConfig: Dtype.int32 is for the bias. Use Dtype.int8 or int16 elsewhere.")
        half = given[2] is not None and given[2].dtype is Dtype.float16
        return Chosen(
            activation=inputs or outputs,  # type: ignore[arg-type]
            weight="float16" if half else weight,  # type: ignore[arg-type]
            bias=bias,
            input=inputs or ("float" if outputs else None),  # type: ignore[arg-type]
            output=outputs or ("float" if inputs else None),  # type: ignore[arg-type]
        )

    def _one(self, name: str) -> QTensorConfig | None:
        value = getattr(self, name)
        return (value[0] if value else None) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class QConfig:
    """What a model is quantized to: a default, layers by type and by name (with `*`), and what is left out."""

    global_quant_config: QLayerConfig
    layer_type_quant_config: Mapping[type[nn.Module], QLayerConfig] = field(default_factory=dict)
    layer_quant_config: Mapping[str, QLayerConfig] = field(default_factory=dict)
    exclude: Sequence[str] = ()
    algo_config: object = None
    quant_mode: QuantizationMode = QuantizationMode.fx_graph_mode
    log_severity_level: object = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.algo_config:
            raise ConfigError(
                "Config(algo_config=...): give algorithms to fxquant.quantize(algorithms=...). Leave it out here."
            )

    def rule(self, *, training: bool) -> Callable[[str, str, object], Chosen | str | None]:
        """Return the config as a rule `(name, kind, op) -> QConfig`."""

        return _ConfigRule(self, training)

    def target(self) -> Target:
        """Return the hardware that the default speaks of: power-of-two scales are for NPUs that shift."""
        chosen = self.global_quant_config.chosen(training=False)
        specs = [spec for spec in (chosen.activation, chosen.weight) if isinstance(spec, Spec)]
        if specs and all(spec.scale == "pow2" and spec.granularity == "per_tensor" for spec in specs):
            return npu(bias8=isinstance(chosen.bias, Spec))
        return x86(vnni=True)


@dataclass(frozen=True, slots=True)
class _ConfigRule:
    """A config as a rule `(name, kind, op) -> QConfig`."""

    config: QConfig
    training: bool

    @property
    def names(self) -> frozenset[str]:
        """The patterns of names of layers, each of which has to match one."""
        return frozenset((*self.config.exclude, *self.config.layer_quant_config))

    def __call__(self, name: str, kind: str, op: object) -> Chosen | str | None:
        config = self.config
        if any(fnmatch.fnmatch(name, pattern) for pattern in config.exclude):
            return "float"
        for pattern, layer in config.layer_quant_config.items():
            if fnmatch.fnmatch(name, pattern):
                return layer.chosen(training=self.training)
        for cls, layer in config.layer_type_quant_config.items():
            if op is cls or (isinstance(op, type) and issubclass(op, cls)):
                return layer.chosen(training=self.training)
        return config.global_quant_config.chosen(training=self.training)


QuantizationSpec = QTensorConfig
QuantizationConfig = QLayerConfig
Config = QConfig
