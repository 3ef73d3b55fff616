"""What a file asks for of the model, of op types and of ops, as rules; and its lists of values as recipes to search."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fxquant.config.qconfig import QConfig
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.config_file.sections.conf import Conf
from fxquant.config_file.sections.quantization import Activation, Weight, Wishes
from fxquant.ops.table import OPS, Role
from fxquant.targets.defaults import default_dynamic_qconfig
from fxquant.tuning.plan import Plan
from fxquant.tuning.tune import default_recipes

DEFAULT = "default_qconfig"  # the name under which files ask for something of all ops
FLOAT = ("fp32", "bf16")
OBSERVERS = {"minmax": "minmax", "kl": "entropy"}
MODES = {"post_training_dynamic_quant": "dynamic", "weight_only": "weight_only"}


def rules_of(conf: Conf, model: nn.Module, target: Target) -> QConfigMapping:
    """Return the rules of a file for a model. Of several values the first counts; `recipes_of` has the others."""
    asked = conf.quantization
    base = _base(asked.approach, target)
    base = _changed(base, asked.model_wise)
    if DEFAULT in asked.op_wise:
        base = _changed(base, asked.op_wise[DEFAULT])
    mapping = QConfigMapping().set_global(base)
    paths = {path for path, _ in model.named_modules()}
    # what is asked for of an op is more than what all ops get, and counts also where these are in float
    whole = base or _base(asked.approach, target)
    for name, wishes in asked.optype_wise.items():
        mapping.set_object_type(_op_type(name), _changed(whole, wishes))
    for name, wishes in asked.op_wise.items():
        if name == DEFAULT:
            continue
        if name in paths:
            mapping.set_module_name(name, _changed(whole, wishes))
        else:
            mapping.set_module_name_regex(f"(?:{name})$", _changed(whole, wishes))
    if not asked.recipes.first_conv_or_matmul_quantization:
        first = _first_product(model)
        if first is not None:
            mapping.set_module_name(first, None)
    return mapping


def _base(approach: str, target: Target) -> QConfig | None:
    if approach == "quant_aware_training":
        return QConfig(
            activation=target.activation.with_(observer="moving_average", learn="ste"),
            weight=target.weight.with_(observer="minmax", learn="ste"),
            bias=target.bias,
        )
    mode = MODES.get(approach)
    if mode == "dynamic":
        return QConfig(activation=default_dynamic_qconfig.activation, weight=target.weight)
    return QConfig(weight=target.weight) if mode == "weight_only" else target.qconfig


def _changed(qconfig: QConfig | None, wishes: Wishes) -> QConfig | None:
    """Return a qconfig with the first of what is wished for; None for float."""
    if qconfig is None:
        return None
    weight_types, types = wishes.weight.dtype or ["int8"], wishes.activation.dtype or ["uint8"]
    if weight_types[0] == "fp16":
        return QConfig(weight="float16")
    if weight_types[0] in FLOAT:
        return None
    weight, activation = qconfig.weight, qconfig.activation
    if isinstance(weight, Spec):
        weight = weight.with_(**{name: values[0] for name, values in _weight_choices(wishes.weight).items()})
        if weight.granularity == "per_tensor":
            weight = weight.with_(axis=0)
    if types[0] in FLOAT:
        # the weight is quantized all the same, as long as no one asks for it in float
        return QConfig(weight=weight) if weight_types[0] not in FLOAT and wishes.weight.dtype else None
    if isinstance(activation, Spec) and not activation.dynamic:
        found = {name: values[0] for name, values in _activation_choices(wishes.activation).items()}
        if "placeholder" in (wishes.activation.algorithm or ())[:1]:
            activation = default_dynamic_qconfig.activation
        elif activation.learn is None:
            activation = activation.with_(**found)
        else:  # ranges in training follow a moving average
            activation = activation.with_(**{name: value for name, value in found.items() if name != "observer"})
    return QConfig(activation=activation, weight=weight, bias=qconfig.bias)


def _weight_choices(asked: Weight) -> dict[str, list[object]]:
    found: dict[str, list[Any]] = {}
    if asked.granularity:
        found["granularity"] = list(asked.granularity)
    if asked.scheme:
        found["symmetric"] = _unique(scheme == "sym" for scheme in asked.scheme)
    if asked.bit:
        found["bits"] = _unique(max(2, int(bit)) for bit in asked.bit)
    return found


def _activation_choices(asked: Activation) -> dict[str, list[object]]:
    found: dict[str, list[Any]] = {}
    integers = [dtype for dtype in asked.dtype or () if dtype in ("int8", "uint8")]
    if integers:
        found["signed"] = _unique(dtype == "int8" for dtype in integers)
    if asked.scheme:
        found["symmetric"] = _unique(scheme == "sym" for scheme in asked.scheme)
    observers = [OBSERVERS[name] for name in asked.algorithm or () if name in OBSERVERS]
    if observers:
        found["observer"] = _unique(observers)
    return found


def _unique(values: Iterable[object]) -> list[object]:
    return list(dict.fromkeys(values))


def recipes_of(conf: Conf, rules: QConfigMapping, objective: str) -> tuple[Plan, ...]:
    """Return the plans that lists of values span, what the rules say first.

    Without lists, those that tuning tries anyway.
    """
    asked = conf.quantization
    wishes = [asked.model_wise, *(asked.op_wise[name] for name in (DEFAULT,) if name in asked.op_wise)]
    activation: dict[str, list[Any]] = {}
    weight: dict[str, list[Any]] = {}
    for each in wishes:
        activation |= _activation_choices(each.activation)
        weight |= _weight_choices(each.weight)
    plans = []
    for values in itertools.product(*activation.values(), *weight.values()):
        ours = tuple(sorted(zip(activation, values[: len(activation)], strict=True)))
        theirs = tuple(sorted(zip(weight, values[len(activation) :], strict=True)))
        plans.append(Plan(activation=ours, weight=theirs))
    if "observer" not in activation:
        plans += default_recipes(rules, objective)[1:]
    if asked.approach == "post_training_auto_quant":
        plans.append(Plan(mode="dynamic"))
    return tuple(dict.fromkeys(plans))


def _op_type(name: str) -> object:
    """Return a class of torch.nn, a function of torch, or a kind of the op table, by any spelling of its name."""
    found = getattr(nn, name, None) or getattr(nn.functional, name, None) or getattr(torch, name, None)
    if found is not None:
        return found
    by_name = {cls.lower(): getattr(nn, cls) for cls in dir(nn)}
    by_name.update({kind.replace("_", ""): kind for kind in OPS.by_kind})
    return by_name.get(name.lower().replace("_", ""), name)


def _first_product(model: nn.Module) -> str | None:
    """Return the first module with a product, in the order in which the model defines them."""
    path: str
    for path, module in model.named_modules():
        op = OPS.of(type(module))
        if op is not None and op.has_weight and not op.is_lookup and op.role is Role.COMPUTE:
            return path
    return None
