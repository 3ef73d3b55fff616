"""Custom modules: the user's observed and quantized classes, as leaves that see float tensors.

prepare   F  ->  O.from_float(F)         F carries the qconfig that its rule gives it as `.qconfig`; `qconfig.weight()`
                                         makes an observer
convert   O  ->  Q.from_observed(O)      O may be a float module that is a leaf of the graph: in dynamic and weight-only
                                         mode nothing is observed
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fxquant.config.custom_config import ModulePairs, QuantType
from fxquant.config.qconfig import QConfig
from fxquant.errors import ConfigError
from fxquant.graph.context import Context
from fxquant.graph.notes import OBSERVED, Decision, Status, decision_of
from fxquant.graph.paths import join_path
from fxquant.graph.region import Region, regions
from fxquant.numerics.observers.standalone import StandaloneObserver, with_factories

log = logging.getLogger("fxquant")

_SHOWN = "_fxquant_shown"  # whether a hook shows the output to the observer of an observed module
_STATUS: Mapping[QuantType, Status] = {
    QuantType.STATIC: "int8",
    QuantType.DYNAMIC: "dynamic",
    QuantType.WEIGHT_ONLY: "weight_only",
}


def quant_type_of(qconfig: QConfig | None) -> QuantType | None:
    """Return what a qconfig asks of a custom module; None for float."""
    if qconfig is None or (qconfig.activation is None and qconfig.weight is None):
        return None
    if qconfig.activation is None:
        return QuantType.WEIGHT_ONLY
    return QuantType.DYNAMIC if qconfig.is_dynamic else QuantType.STATIC


def observe_custom(module: nn.Module, qconfig: QConfig, observed_class: Any, quant_type: QuantType) -> nn.Module:
    """Return the observed form of a module (of a clone: it gets a `qconfig`).

    A static one has an observer of its output as `activation_post_process`, which `from_observed` may ask. One that it
    brings is shown the output, too, unless the module itself calls it.
    """
    qconfig = with_factories(qconfig)
    module.qconfig = qconfig  # type: ignore[assignment]
    observed = observed_class.from_float(module)
    _need_module(observed, observed_class, "from_float")
    if not hasattr(observed, "qconfig"):
        observed.qconfig = qconfig
    if quant_type is QuantType.STATIC:
        assert qconfig.activation is not None
        if not hasattr(observed, "activation_post_process"):
            observed.activation_post_process = StandaloneObserver(qconfig.activation)
        observed.register_forward_hook(_observe_output)
    observed.__dict__[OBSERVED] = quant_type.value
    observed.train(module.training)
    assert isinstance(observed, nn.Module)
    return observed


def _observe_output(module: nn.Module, args: object, output: object) -> None:
    observer = module.activation_post_process
    if not isinstance(observer, StandaloneObserver) or not isinstance(output, Tensor):
        return
    if _SHOWN not in module.__dict__:  # the first call: has it seen something in the module's own code?
        module.__dict__[_SHOWN] = observer.observer is not None and not observer.observer.seen
    if module.__dict__[_SHOWN]:
        observer(output)


def take_leaves(model: nn.Module, pairs: ModulePairs) -> None:
    """Make custom modules of the float leaves that have a quantized form, in place, by what the rules say of them.

    That is to be read before the graph is decided. Raises where a class has one for other quantization alone.
    """
    named = {cls for classes in pairs.values() for cls in classes}
    found = {type(module) for module in model.modules()} & named
    for cls in named - found:
        log.warning("convert_custom_config names %s, and there is no such module in the prepared model", cls.__name__)
    taken, left = set[type](), dict[type, tuple[str, QuantType]]()
    for path, region in regions(model) if found else ():
        for node in region.graph.nodes:
            choice = node.meta.get("choice")
            if node.op != "call_module" or choice is None or (kind := quant_type_of(choice.qconfig)) is None:
                continue
            module: Any = region.get_submodule(str(node.target))
            if OBSERVED in module.__dict__ or type(module) not in named:
                continue
            if type(module) not in pairs.get(kind, {}):
                left.setdefault(type(module), (join_path(path, str(node.target)), kind))
                continue
            taken.add(type(module))
            module.qconfig = with_factories(choice.qconfig)
            module.__dict__[OBSERVED] = kind.value
    for cls, (path, kind) in left.items():
        if cls not in taken:
            raise ConfigError(
                "convert_custom_config: observed_to_quantized_custom_module_class " + why_unused(cls, path, kind, pairs)
            )


def why_unused(cls: type, path: str, kind: QuantType, pairs: ModulePairs) -> str:
    """Say that a class has a form for other quantization than the rules ask for at a path."""
    keys = " and ".join(repr(key.value) for key, classes in pairs.items() if cls in classes)
    return (
        f"names {cls.__name__} under {keys}, and the qconfig of {path!r} asks for {kind.value!r}. "
        f"Name it under {kind.value!r}, give it a qconfig of that kind, or None to leave it in float."
    )


def mark_custom(region: Region, context: Context) -> None:
    """Write the Decisions of custom modules, the user's own."""
    for node in region.graph.nodes:
        if node.op != "call_module":
            continue
        module = region.get_submodule(str(node.target))
        name = module.__dict__.get(OBSERVED)
        if name is not None:
            kind, decision = type(module).__name__, decision_of(node)
            status, reason = _STATUS[QuantType(name)], f"custom module {kind}"
            rule = decision.rule if decision is not None else ""
            node.meta["decision"] = Decision(kind=kind, status=status, reason=reason, rule=rule)


def quantize_custom(model: nn.Module, pairs: ModulePairs) -> nn.Module:
    """Put the quantized form in place of every observed custom module, in place."""
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is None or (kind := child.__dict__.get(OBSERVED)) is None:
                continue
            if id(child) not in made:
                made[id(child)] = _quantized(child, QuantType(kind), pairs)
            parent._modules[name] = made[id(child)]
    return model


def _quantized(observed: nn.Module, kind: QuantType, pairs: ModulePairs) -> nn.Module:
    quantized_class: Any = pairs.get(kind, {}).get(type(observed))
    if quantized_class is None:
        raise ConfigError(
            f"{type(observed).__name__} is a custom module ({kind.value}), and convert_custom_config names no "
            f"quantized class for it. Pass observed_to_quantized_custom_module_class={{{kind.value!r}: {{"
            f"{type(observed).__name__}: ...}}}}."
        )
    quantized = quantized_class.from_observed(observed)
    _need_module(quantized, quantized_class, "from_observed")
    quantized.train(observed.training)
    assert isinstance(quantized, nn.Module)
    return quantized


def _need_module(value: object, cls: type, method: str) -> None:
    if not isinstance(value, nn.Module):
        raise ConfigError(f"{cls.__name__}.{method} returned a {type(value).__name__}; it has to return a module.")
