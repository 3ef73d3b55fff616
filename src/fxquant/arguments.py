"""What users hand to the calls of the FX flow, checked: each error says what, where, what next."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fxquant.assemble import Assembled
from fxquant.core.config_forms import closest
from fxquant.core.graph import regions
from fxquant.core.mapping import Rules
from fxquant.core.target import Target
from fxquant.core.tree import tree_of
from fxquant.core.waiting import refuse_waiting
from fxquant.errors import ConfigError, StageError
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.targets import by_name
from fxquant.targets.backend_config import read_backend_config


def read_target(target: Target | str | None, backend_config: object, rules: Rules) -> Target | None:
    """The hardware, from a Target, its name, or torch.ao's description, which rules have to fit; None if it is open."""
    if backend_config is None:
        return by_name(target) if target is not None else None
    if target is not None:
        raise ConfigError("give target or backend_config, not both.")
    backend = read_backend_config(backend_config, by_name(None))
    backend.check(rules.mapping)
    return backend.target


def check_backend_config(backend_config: object) -> None:
    """Where hardware was decided on before: at least, it has to be one that can be read."""
    if backend_config is not None:
        read_backend_config(backend_config, by_name(None))


def refuse_prepared(model: nn.Module, caller: str) -> None:
    """The passes are for float models."""
    for path, region in regions(model):
        if region._region.stage == "prepared" or (not path and region._region.stage == "converted"):
            where = f"its submodule {path!r}" if path else "it"
            raise StageError(
                f"{caller} got a model of which {where} is already {region._region.stage}. Give the float model."
            )


def either(config: object, older: object, name: str) -> object:
    """An argument under its own name or, as older code has it, with `_dict` at the end."""
    if config is not None and older is not None:
        raise ConfigError(f"give {name} or {name}_dict, not both.")
    return config if config is not None else older


def check_boundaries(assembled: Assembled) -> None:
    """Integers at the boundary need a graph that begins and ends there."""
    whole = {path for path, _ in regions(assembled.model)}
    for scope in assembled.scopes:
        if scope.path not in whole and (scope.custom.input_quantized_indexes or scope.custom.output_quantized_indexes):
            what = f"standalone module {scope.path!r}" if scope.path else "the model"
            raise ConfigError(
                f"input_quantized_indexes and output_quantized_indexes need {what} to be captured as one graph, and it "
                "does not trace. fxquant.wrap the parts that do not, or leave its boundary in float."
            )


def read_examples(inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of one forward call."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping) and kwargs is None:
        inputs, kwargs = (), inputs
    if not isinstance(inputs, (tuple, list)):
        raise ConfigError(
            f"example_inputs is a {type(inputs).__name__}. Give a tuple of positional arguments, a tensor, "
            "or a dict of keyword arguments."
        )
    if not inputs and not kwargs:
        raise ConfigError("example_inputs is empty. Give the arguments of one forward call.")
    return tuple(inputs), dict(kwargs or {})


def check_rules(rules: Rules, model: nn.Module, strict: bool) -> None:
    """Rules that matched nothing are mistakes."""
    classes = {type(module) for module in model.modules()}
    problems = rules.unmatched((path for path, _ in model.named_modules() if path), classes)
    if not problems:
        return
    message = "\n".join(problems) + "\nRun fxquant.explain(prepared) or model.named_modules() to list the paths."
    if strict:
        raise ConfigError(message + " strict=False makes this a warning.")
    warnings.warn(message, stacklevel=3)


def is_calibrated(model: nn.Module, caller: str) -> bool:
    """Whether any quantizer of a prepared model has seen data, if it needs some; raises if the model is not one."""
    refuse_waiting(model, caller)
    found = [(path, region) for path, region in regions(model)]
    if not found and tree_of(model).method:
        return True  # there was nothing to quantize
    if not found or not any(region._region.stage == "prepared" for _, region in found):
        stage = f"is {found[0][1]._region.stage}" if found else f"is a plain {type(model).__name__}"
        raise StageError(f"{caller} needs a model from prepare_fx or prepare_qat_fx; this one {stage}.")
    static = _need_data(model)
    return not static or any(q.has_range for q in static)


def _need_data(model: nn.Module) -> list[FakeQuant]:
    quantizers = [module for module in model.modules() if isinstance(module, FakeQuant)]
    return [q for q in quantizers if q.observer is not None and q.spec.observer != "fixed"]


def check_calibrated(model: nn.Module, caller: str) -> None:
    """There has to be a prepared region, and data that it saw."""
    if not is_calibrated(model, caller):
        static = _need_data(model)
        trained = any(q.spec.learn is not None for q in static)
        todo = "Train it, or run" if trained else "Run"
        raise StageError(
            f"the model was not {'trained' if trained else 'calibrated'}: "
            f"none of its {len(static)} quantizers saw data. "
            f"{todo} calibrate(prepared, loader), or your own loop of prepared(batch), before {caller}."
        )


def check_concrete(
    model: nn.Module, concrete: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Fixed arguments are arguments of forward, given once, and no tensors."""
    parameters = list(inspect.signature(model.forward).parameters)
    for name, value in concrete.items():
        if name not in parameters:
            raise ConfigError(f"concrete_args: forward has no argument {name!r}.{closest(name, parameters)}")
        if name in kwargs or name in parameters[: len(args)]:
            raise ConfigError(f"concrete_args: {name!r} is among the example inputs too. Give it once.")
        if isinstance(value, Tensor):
            raise ConfigError(
                f"concrete_args: {name!r} is a tensor, which is no fixed value. Give it as example input."
            )
