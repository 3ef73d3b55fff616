"""What users hand to the calls of the FX flow, checked: each error says what, where, what next."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict, TypeVar

from torch import Tensor, nn

from fxquant.capture import Method, Sizes
from fxquant.config.custom_config import ConvertCustomConfig, PrepareCustomConfig, as_convert_config
from fxquant.config.forms import closest
from fxquant.config.rules import Rules
from fxquant.config.target import Target
from fxquant.errors import ConfigError, StageError
from fxquant.flows.calibrate import runs
from fxquant.graph.algorithm import Algorithm
from fxquant.graph.check_model import refuse_meta
from fxquant.graph.context import Context
from fxquant.graph.first_call import refuse_waiting
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.tree import is_value, tree_of
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.ops.table import OPS
from fxquant.passes.candidates import same_op
from fxquant.targets import by_name
from fxquant.targets.backend_config import read_backend_config
from fxquant.targets.march import march
from fxquant.templates import Purpose, for_target

_Call = TypeVar("_Call", bound=Callable[..., object])


class Preparing(TypedDict, total=False):
    """Arguments of `prepare_fx` that other calls take for it: how a model is captured, and a custom config."""

    concrete_args: Mapping[str, object] | None
    method: Method
    sizes: Sizes
    strict: bool
    prepare_custom_config: PrepareCustomConfig | Mapping[str, object] | None
    prepare_custom_config_dict: Mapping[str, object] | None


class Converting(TypedDict, total=False):
    """Likewise those of `convert_fx`."""

    convert_custom_config: ConvertCustomConfig | Mapping[str, object] | None
    convert_custom_config_dict: Mapping[str, object] | None


def spell_out(further: type, *callees: Callable[..., object]) -> Callable[[_Call], _Call]:
    """Have `help` of a call name one by one what it takes as keywords for others, with the defaults of these."""
    inner_first = reversed(callees)  # the first that has an argument is who gets it
    known = {name: each for callee in inner_first for name, each in inspect.signature(callee).parameters.items()}
    more = [known[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in further.__annotations__]

    def decorate(call: _Call) -> _Call:
        signature = inspect.signature(call)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        vars(call)["__signature__"] = signature.replace(parameters=[*own, *more])
        return call

    return decorate


def take_converting(further: Converting, caller: Callable[..., object]) -> ConvertCustomConfig:
    """Take the config of `convert_fx` out of what a call got for others; a name that nobody knows is an error."""
    known = inspect.signature(caller).parameters
    for name in further:
        if name not in known:
            raise TypeError(f"{caller.__name__}() has no argument {name!r}.{closest(name, known)}")
    config, older = further.pop("convert_custom_config", None), further.pop("convert_custom_config_dict", None)
    return as_convert_config(either(config, older, "convert_custom_config"))


def read_target(target: Target | str | None, backend_config: object, rules: Rules) -> Target | None:
    """Return the hardware, from a Target, its name, or torch.ao's description, which rules have to fit.

    None if it is open.
    """
    if backend_config is None:
        return by_name(target) if target is not None else march()
    if target is not None:
        raise ConfigError("give target or backend_config, not both.")
    backend = read_backend_config(backend_config, by_name("x86"))
    backend.check(rules.mapping)
    return backend.target


def read_rules(source: object, target: Target | str | None, purpose: Purpose) -> Rules:
    """Return the rules of a mapping, a qconfig, callables, or templates for the target."""
    return Rules(for_target(source, by_name(target), purpose), functools.partial(same_op, OPS))


def without(qconfig_mapping: object, ignore: Iterable[object]) -> object:
    """Return the rules of a mapping, with module paths and types of ops that stay in float whatever it says of them."""
    if isinstance(ignore, (str, type)) or not isinstance(ignore, Iterable):
        raise ConfigError(f"ignore is {ignore!r}. Give a list, such as ['head', nn.Softmax].")
    entries = list(ignore)
    if not entries:
        return qconfig_mapping
    rules = Rules(qconfig_mapping, functools.partial(same_op, OPS))
    if rules.has_setters:
        raise ConfigError("ignore goes with a mapping, not with callables: let those return 'float'.")
    mapping = copy.deepcopy(rules.mapping)
    for entry in entries:
        if isinstance(entry, nn.Module):
            name = type(entry).__name__
            raise ConfigError(f"ignore has a module. Give its path in the model, such as 'head', or its class, {name}.")
        if isinstance(entry, str):
            mapping.set_module_name(entry, None)
        else:
            mapping.set_object_type(entry, None)
    return mapping


def check_backend_config(backend_config: object) -> None:
    """Raise unless a backend_config can be read. It says nothing new where hardware was decided on before."""
    if backend_config is not None:
        read_backend_config(backend_config, by_name("x86"))


def refuse_prepared(model: nn.Module, caller: str) -> None:
    """Raise for a model that is no float model with numbers in it, which is what the passes are for."""
    refuse_meta(model, caller)
    for path, region in regions(model):
        if stage_of(region) is Stage.PREPARED or (not path and stage_of(region) is Stage.CONVERTED):
            found = f"with a submodule {path!r} that" if path else "that"
            raise StageError(f"{caller} got a model {found} is already {stage_of(region)}. Give the float model.")


def either(config: object, older: object, name: str) -> object:
    """Return an argument under its own name or, as older code has it, with `_dict` at the end."""
    if config is not None and older is not None:
        raise ConfigError(f"give {name} or {name}_dict, not both.")
    return config if config is not None else older


def refuse_equalization(config: object, caller: str) -> None:
    """Raise if torch.ao's way to equalize is asked for."""
    if config is not None:
        raise ConfigError(
            f"{caller}(_equalization_config=...) is not supported. What equalizes inputs and weights here is an "
            "algorithm: algorithms=(fxquant.algorithms.SmoothQuant(), fxquant.algorithms.BiasCorrection())."
        )


def read_algorithms(algorithms: Iterable[Algorithm]) -> tuple[Algorithm, ...]:
    """Return the algorithms in their order, each an object."""
    if isinstance(algorithms, Algorithm) or not isinstance(algorithms, Iterable):
        raise ConfigError(
            f"algorithms is {algorithms!r}. Give a tuple, such as (fxquant.algorithms.BiasCorrection(),)."
        )
    found = tuple(algorithms)
    for each in found:
        if isinstance(each, type) and issubclass(each, Algorithm):
            raise ConfigError(f"algorithms has the class {each.__name__}. Give an object of it: {each.__name__}().")
        if not isinstance(each, Algorithm):
            raise ConfigError(f"algorithms has {each!r}, which is no fxquant.algorithms.Algorithm.")
    return found


def check_boundaries(model: nn.Module, contexts: Iterable[Context]) -> None:
    """Raise where integers are asked for at a boundary at which no graph begins and ends."""
    whole = {path for path, _ in regions(model)}
    for context in contexts:
        custom = context.custom
        if context.path not in whole and (custom.input_quantized_indexes or custom.output_quantized_indexes):
            what = f"standalone module {context.path!r}" if context.path else "the model"
            raise ConfigError(
                f"input_quantized_indexes and output_quantized_indexes need {what} to be captured as one graph, and it "
                "does not trace. fxquant.wrap the parts that do not, or leave its boundary in float."
            )


def read_examples(
    inputs: object, kwargs: Mapping[str, object] | None, model: nn.Module | None = None
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return (args, kwargs) of one forward call. A dict holds keyword arguments, or is the one argument of a model."""
    if isinstance(inputs, Tensor) or (model is not None and kwargs is None and _is_argument(inputs, model)):
        inputs = (inputs,)
    if inputs is None and kwargs is not None:
        inputs = ()
    if isinstance(inputs, Mapping) and kwargs is None:
        kwargs = inputs
        inputs = ()
    if not isinstance(inputs, (tuple, list)):
        raise ConfigError(
            f"example_inputs is a {type(inputs).__name__}. Give a tuple of positional arguments, a tensor, "
            "or a dict of keyword arguments."
        )
    if not inputs and not kwargs:
        raise ConfigError("example_inputs is empty. Give the arguments of one forward call.")
    return tuple(inputs), dict(kwargs or {})


def _is_argument(inputs: object, model: nn.Module) -> bool:
    """Tell whether a dict is the value of `forward(self, data)`: none of its keys is an argument's name."""
    parameters = inspect.signature(model.forward).parameters
    if not isinstance(inputs, Mapping) or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return False
    return len(parameters) == 1 and is_value(inputs, list(parameters)) and runs(model, (inputs,), {})


def check_rules(context: Context) -> None:
    """Raise for rules that matched nothing: they are mistakes."""
    rules, model = context.rules, context.model
    assert rules is not None and model is not None
    classes = {type(module) for module in model.modules()}
    problems = rules.unmatched((path for path, _ in model.named_modules() if path), classes)
    if not problems:
        return
    message = "\n".join(problems) + "\nRun fxquant.explain(prepared) or model.named_modules() to list the paths."
    if context.strict:
        raise ConfigError(message + " strict=False of prepare_fx, prepare_qat_fx and quantize makes this a warning.")
    warnings.warn(message, stacklevel=5)


def is_calibrated(model: nn.Module, caller: str) -> bool:
    """Tell whether any quantizer of a prepared model has seen data, if it needs some.

    Raises if the model is not one.
    """
    refuse_waiting(model, caller)
    found = [(path, region) for path, region in regions(model)]
    if not found and tree_of(model).method:
        return True  # there was nothing to quantize
    if not found or not any(stage_of(region) is Stage.PREPARED for _, region in found):
        stage = f"is {stage_of(found[0][1])}" if found else f"is a plain {type(model).__name__}"
        raise StageError(f"{caller} needs a model from prepare_fx or prepare_qat_fx; this one {stage}.")
    static = _need_data(model)
    return not static or any(q.has_range for q in static)


def _need_data(model: nn.Module) -> list[FakeQuant]:
    quantizers = [module for module in model.modules() if isinstance(module, FakeQuant)]
    return [q for q in quantizers if q.observer is not None and q.spec.observer != "fixed"]


def check_calibrated(model: nn.Module, caller: str) -> None:
    """Raise unless there is a prepared region, and data that it saw."""
    if not is_calibrated(model, caller):
        static = _need_data(model)
        trained = any(q.spec.learn is not None for q in static)
        todo = "Train it (after prepared.train()), or run" if trained else "Run"
        raise StageError(
            f"the model was not {'trained' if trained else 'calibrated'}: "
            f"none of its {len(static)} quantizers saw data. "
            f"{todo} calibrate(prepared, loader), or your own loop of prepared(batch), before {caller}."
        )


def check_concrete(
    model: nn.Module, concrete: Mapping[str, object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    """Raise unless fixed arguments are arguments of forward, given once, and no tensors."""
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
