"""QConfig: which spec each tensor of an op gets. Also reads the qconfig objects of torch.ao by their attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from fxquant.core.spec import Int32, ObserverKind, Spec
from fxquant.errors import ConfigError

Float = Literal["float"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QConfig:
    """Specs of an op's tensors.

    `activation` is for inputs and output, `weight` for the weight; None leaves them in float. `input` and `output`
    override `activation` for one side: a Spec, or "float" to exempt it. `input` may also be a dict from operand
    position to Spec or "float", to treat a single operand. `bias` is float unless a spec is given, or "int32": whole
    numbers at the scale of the input times that of the weight, as accumulators hold them.
    """

    activation: Spec | None = None
    weight: Spec | None = None
    bias: Spec | Int32 | None = None
    output: Spec | Float | None = None
    input: Spec | Float | Mapping[int, Spec | Float] | tuple[tuple[int, Spec | Float], ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.input, Mapping):
            object.__setattr__(self, "input", tuple(sorted(self.input.items(), key=lambda item: item[0])))
        for field in ("activation", "weight", "bias"):
            value = getattr(self, field)
            if value is not None and not isinstance(value, Spec) and not (field == "bias" and value == "int32"):
                read = _spec_from_factory(value, field)
                object.__setattr__(self, field, read)
        for field in ("output", "input"):
            value = getattr(self, field)
            values = [item for _, item in value] if isinstance(value, tuple) else [value]
            for item in values:
                if item is not None and item != "float" and not isinstance(item, Spec):
                    raise ConfigError(f'QConfig({field}={item!r}): expected a Spec, "float" or None.')
        for field in ("activation", "output", "input"):
            for spec in self._specs(field):
                if spec.granularity != "per_tensor":
                    raise ConfigError(
                        f"QConfig({field}=...): activations are quantized per_tensor, not {spec.granularity}. "
                        "Use granularity='per_tensor' there; per_channel and per_group are for weights."
                    )
        if isinstance(self.bias, Spec) and self.bias.granularity != "per_tensor":
            raise ConfigError('QConfig(bias=...): a bias has one scale (per_tensor), or is "int32".')
        if self.weight is not None and self.weight.dynamic:
            raise ConfigError("QConfig(weight=Spec(dynamic=True)): a weight does not change at run time.")

    def _specs(self, field: str) -> list[Spec]:
        value = getattr(self, field)
        values = [item for _, item in value] if isinstance(value, tuple) else [value]
        return [item for item in values if isinstance(item, Spec)]

    def input_spec(self, operand: int) -> Spec | None:
        """The spec of an activation operand; None for float."""
        value: Any = self.input
        if isinstance(value, tuple):
            value = dict(cast(Any, value)).get(operand)
        if value is None:
            return self.activation
        return value if isinstance(value, Spec) else None

    def explicit_input_spec(self, operand: int) -> Spec | None:
        """The spec given for this very operand through `input`, if any."""
        value: Any = self.input
        if isinstance(value, tuple):
            value = dict(cast(Any, value)).get(operand)
        return value if isinstance(value, Spec) else None

    @property
    def output_spec(self) -> Spec | None:
        """The spec of the output; None for float."""
        if self.output is None:
            return self.activation
        return self.output if isinstance(self.output, Spec) else None

    @property
    def is_training(self) -> bool:
        """Whether any spec is one for quantization-aware training."""
        fields = ("activation", "weight", "bias", "output", "input")
        return any(spec.learn is not None for field in fields for spec in self._specs(field))

    @property
    def is_dynamic(self) -> bool:
        return self.activation is not None and self.activation.dynamic


_OBSERVERS: tuple[tuple[str, ObserverKind], ...] = (
    ("Histogram", "histogram"),
    ("MovingAverage", "moving_average"),
    ("FixedQParams", "fixed"),
    ("MinMax", "minmax"),
    ("Placeholder", "minmax"),
    ("ReuseInput", "minmax"),
)
_NO_QUANTIZATION = ("torch.float32", "torch.float", "torch.float16", "torch.bfloat16")


def as_qconfig(value: object) -> QConfig | None:
    """A QConfig from ours, from None, or from an object with `activation` and `weight` observer factories."""
    if value is None or isinstance(value, QConfig):
        return value
    if hasattr(value, "activation") and hasattr(value, "weight"):
        return QConfig(activation=value.activation, weight=value.weight)
    raise ConfigError(
        f"{value!r} is not a qconfig. Give a fxquant.QConfig, None (leave in float), "
        "or a torch.ao.quantization.QConfig."
    )


def _spec_from_factory(factory: Any, field: str) -> Spec | None:
    """Read an observer or fake-quantize factory as torch.ao has them: make one, look at its attributes."""
    if not callable(factory):
        raise ConfigError(f"QConfig({field}={factory!r}): expected a fxquant.Spec or an observer factory.")
    try:
        made = factory()
    except Exception as error:
        raise ConfigError(f"QConfig({field}={factory!r}): calling the observer factory failed: {error}") from error
    observer = getattr(made, "activation_post_process", made)
    name = type(observer).__name__
    dtype = str(getattr(observer, "dtype", None))
    if dtype in _NO_QUANTIZATION or name == "NoopObserver":
        return None
    kind = next((kind for prefix, kind in _OBSERVERS if prefix in name), None)
    if kind is None or "int" not in dtype:
        raise ConfigError(
            f"QConfig({field}=...): cannot read an observer of class {name} with dtype {dtype}. "
            "Write the same as a fxquant.Spec."
        )
    signed = "uint" not in dtype
    low, high = getattr(made, "quant_min", None), getattr(made, "quant_max", None)
    bits = int(high - low).bit_length() if low is not None and high is not None else (32 if "32" in dtype else 8)
    if signed and low is not None and low >= 0:
        signed = False
    qscheme = str(getattr(observer, "qscheme", ""))
    per_channel = "per_channel" in qscheme
    symmetric = "symmetric" in qscheme
    spec = Spec(
        bits=bits,
        signed=signed,
        symmetric=symmetric,
        granularity="per_channel" if per_channel else "per_tensor",
        axis=int(getattr(observer, "ch_axis", 0)) if per_channel else 0,
        dynamic=bool(getattr(observer, "is_dynamic", False)),
        observer="minmax" if kind == "fixed" else kind,
        momentum=float(getattr(observer, "averaging_constant", 0.01)),
        learn="ste" if hasattr(made, "fake_quant_enabled") else None,
    )
    if kind == "fixed":
        scale, zero = float(observer.scale), int(observer.zero_point)
        limits = ((spec.quant_min - zero) * scale, (spec.quant_max - zero) * scale)
        spec = dataclasses.replace(spec, observer="fixed", range=limits, symmetric=False)
    return spec
