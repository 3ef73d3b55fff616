"""Horizon's prepare: one model for calibration, for training and for checking, switched by `set_fake_quantize`.

prepare (calibration templates) -> CALIBRATION, data -> VALIDATION, accuracy -> state_dict
prepare (QAT templates) -> load_state_dict -> QAT, training -> VALIDATION -> fxquant.convert_fx
"""

from __future__ import annotations

from enum import Enum

from torch import Tensor, nn

from fxquant.capture import Method
from fxquant.capture.canonical.as_plain import as_plain
from fxquant.compat.horizon.march import get_march
from fxquant.compat.horizon.quantization.qconfig_template import Setter, default_calibration_qconfig_setter
from fxquant.errors import ConfigError
from fxquant.graph.check_model import refuse_other
from fxquant.graph.own import copy_model
from fxquant.numerics.switches import Switched
from fxquant.quantize_fx import prepare_qat_fx
from fxquant.targets.march import march


class PrepareMethod(Enum):
    """How the graph is found. The eager mode has none; the ladder of fxquant finds one for such models, too."""

    SYMBOLIC = "symbolic"
    EAGER = "eager"
    JIT = "jit"
    JIT_STRIP = "jit-strip"


_METHODS: dict[PrepareMethod, Method] = {PrepareMethod.SYMBOLIC: "symbolic"}


class FakeQuantState(Enum):
    """What the quantizers of a prepared model do: observe, observe and round, or round."""

    CALIBRATION = "calibration"
    QAT = "qat"
    VALIDATION = "validation"


def prepare(
    model: nn.Module,
    example_inputs: Tensor | tuple[object, ...] | list[object] | None = None,
    qconfig_setter: Setter | tuple[Setter, ...] | None = None,
    method: PrepareMethod = PrepareMethod.SYMBOLIC,
) -> nn.Module:
    """Put fake quantizers into a model, for the march that was set. Of several setters the first answer wins.

    The model is not changed. Setters for calibration and for training cannot be mixed. The result is in the mode
    (train or eval) of the model.
    """
    get_march()
    if not isinstance(method, PrepareMethod):
        raise ConfigError(f"prepare(method={method!r}): give one of {', '.join(map(str, PrepareMethod))}.")
    plain = as_plain(model, "prepare", training=True)
    setters = qconfig_setter if isinstance(qconfig_setter, tuple) else (qconfig_setter or _DEFAULT,)
    purposes = {purpose for setter in setters if (purpose := getattr(setter, "purpose", None)) is not None}
    if len(purposes) > 1:
        raise ConfigError("prepare: setters for calibration and for QAT are mixed. Use those of one of the two.")
    training = model.training
    plain = copy_model(plain).train()
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    prepared = prepare_qat_fx(plain, setters, inputs, target=march(), method=_METHODS.get(method, "auto"))
    return prepared.train(training)


_DEFAULT: Setter = default_calibration_qconfig_setter


def set_fake_quantize(model: nn.Module, fake_quant_state: FakeQuantState) -> None:
    """Switch all quantizers of a prepared model."""
    if not isinstance(fake_quant_state, FakeQuantState):
        known = ", ".join(map(str, FakeQuantState))
        raise ConfigError(f"set_fake_quantize(fake_quant_state={fake_quant_state!r}): give one of {known}.")
    refuse_other(model, "set_fake_quantize")
    observing = fake_quant_state is not FakeQuantState.VALIDATION
    rounding = fake_quant_state is not FakeQuantState.CALIBRATION
    found = [module for module in model.modules() if isinstance(module, Switched)]
    if not found:
        raise ConfigError("set_fake_quantize: the model has no quantizers. Give the result of prepare.")
    for module in found:
        module.enable_observer(observing)
        module.enable_fake_quant(rounding)
