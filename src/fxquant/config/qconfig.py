"""QConfig: which spec each tensor of an op gets. Also reads the qconfig objects of torch.ao by their attributes."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast

from fxquant.config.read_observer import Float16, read_factory
from fxquant.config.spec import Int32, Spec
from fxquant.errors import ConfigError

Float = Literal["float"]
Lift = Literal["float", "weight_only", "dynamic"]  # ways to give an op more precision than static int8
_WORDS = (("bias", "int32"), ("weight", "float16"))


@dataclass(frozen=True, slots=True)
class QConfig:
    """Specs of an op's tensors.

    `activation` is for inputs and output, `weight` for the weight; None leaves them in float, and the weight may be
    "float16": stored as that, computed in float. Both may be given as observer classes or factories. `input` and
    `output` override `activation` for one side: a Spec, or "float" to exempt it. `input` may also be a dict from
    operand position to Spec or "float", to treat a single operand. `bias` is float unless a spec is given, or "int32":
    whole numbers at the scale of the input times that of the weight, as accumulators hold them.

    Example:
        >>> qconfig = fq.QConfig(activation=fq.Spec(signed=False, symmetric=False), weight=fq.Spec(bits=4))
        >>> quantized = fq.quantize(model, loader, qconfig_mapping=qconfig)
    """

    activation: Spec | None = None
    weight: Spec | Float16 | None = None
    _: KW_ONLY
    bias: Spec | Int32 | None = None
    output: Spec | Float | None = None
    input: Spec | Float | Mapping[int, Spec | Float] | tuple[tuple[int, Spec | Float], ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.input, Mapping):
            object.__setattr__(self, "input", tuple(sorted(self.input.items(), key=lambda item: item[0])))
        for field in ("activation", "weight", "bias"):
            value = getattr(self, field)
            word = isinstance(value, str) and (field, value) in _WORDS
            if value is not None and not isinstance(value, Spec) and not word:
                read = read_factory(value, field)
                object.__setattr__(self, field, read)
        for field in ("output", "input"):
            value = getattr(self, field)
            pairs = isinstance(value, tuple) and all(isinstance(item, tuple) and len(item) == 2 for item in value)
            for item in [item for _, item in value] if pairs else [value]:
                if not isinstance(item, (Spec, str, types.NoneType)) or (isinstance(item, str) and item != "float"):
                    raise ConfigError(f'QConfig({field}={item!r}): expected a Spec, "float" or None.')
        for field in ("activation", "output", "input"):
            for spec in self._specs(field):
                if spec.granularity == "per_group" or (spec.granularity == "per_channel" and spec.axis == 0):
                    raise ConfigError(
                        f"QConfig({field}=...): activations are quantized per_tensor, or per_channel along another "
                        f"axis than 0, that of the batch, not {spec}. Use granularity='per_tensor', or axis=1."
                    )
                if spec.granularity == "per_channel" and (spec.dynamic or spec.learn not in (None, "ste")):
                    raise ConfigError(
                        f"QConfig({field}=...): the ranges of an activation per_channel are observed, neither dynamic "
                        "nor learned. Use granularity='per_tensor' there."
                    )
        if isinstance(self.bias, Spec) and self.bias.granularity != "per_tensor":
            raise ConfigError('QConfig(bias=...): a bias has one scale (per_tensor), or is "int32".')
        if isinstance(self.weight, Spec) and self.weight.dynamic:
            raise ConfigError("QConfig(weight=Spec(dynamic=True)): a weight does not change at run time.")

    def _specs(self, field: str) -> list[Spec]:
        value = getattr(self, field)
        values = [item for _, item in value] if isinstance(value, tuple) else [value]
        return [item for item in values if isinstance(item, Spec)]

    def input_spec(self, operand: int) -> Spec | None:
        """Return the spec of an activation operand; None for float."""
        value: Any = self.input
        if isinstance(value, tuple):
            value = dict(cast(Any, value)).get(operand)
        if value is None:
            return self.activation
        return value if isinstance(value, Spec) else None

    def explicit_input_spec(self, operand: int) -> Spec | None:
        """Return the spec given for this very operand through `input`, if any."""
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


DYNAMIC = Spec(signed=False, symmetric=False, dynamic=True, observer="minmax")  # an activation, by its own range


def as_mode(qconfig: QConfig, mode: str) -> QConfig | None:
    """Return the same op in another mode: float, weight_only, dynamic, or static as it is."""
    if mode == "float":
        return None
    if mode == "weight_only":
        return QConfig(weight=qconfig.weight)
    if mode == "dynamic":
        return QConfig(activation=DYNAMIC, weight=qconfig.weight)
    if mode != "static":
        raise ConfigError(f"a plan has the mode {mode!r}. Known: static, dynamic, weight_only, float.")
    return qconfig


def as_qconfig(value: object) -> QConfig | None:
    """Return a QConfig from ours, from None, or from an object with `activation` and `weight` observer factories."""
    if value is None or isinstance(value, QConfig):
        return value
    if hasattr(value, "activation") and hasattr(value, "weight"):
        return QConfig(activation=value.activation, weight=value.weight)
    shown = repr(value) if len(repr(value)) < 80 else f"a {type(value).__name__}"
    raise ConfigError(
        f"{shown} is not a qconfig. Give a fxquant.QConfig, None (leave in float), or a torch.ao.quantization.QConfig."
    )
