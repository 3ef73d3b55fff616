"""The FX flow: fuse, prepare, calibrate, convert, with the names and arguments that FX users know.

fuse_fx      capture, fold_bn
prepare_fx   assemble (capture), fold_bn, drop_noops, split_ops, annotate, mark_custom, insert, watch_means,
             quantize_boundary
convert_fx   quantize_custom, correct_biases, convert, open_boundary, connect_regions, lower
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from fxquant.assemble import Assembled, Scope, assemble
from fxquant.capture import Method, capture
from fxquant.core.config_forms import closest
from fxquant.core.custom_config import (
    ConvertCustomConfig,
    FuseCustomConfig,
    PrepareCustomConfig,
    as_convert_config,
    as_fuse_config,
    as_prepare_config,
    check_preserved,
)
from fxquant.core.graph import Region, regions
from fxquant.core.mapping import Rules, Site
from fxquant.core.ops import OPS
from fxquant.core.target import Target
from fxquant.core.verify import run_passes
from fxquant.engines.choose import Engine, apply_engine, check_engine
from fxquant.errors import ConfigError, StageError
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.passes.annotate import annotate
from fxquant.passes.bias_correct import correct_biases, watch_means
from fxquant.passes.boundary import connect_regions, open_boundary, quantize_boundary
from fxquant.passes.candidates import is_left_alone, same_op, sites
from fxquant.passes.convert import convert
from fxquant.passes.convert_weights import Tied
from fxquant.passes.custom_modules import mark_custom, quantize_custom
from fxquant.passes.drop_noops import drop_noops
from fxquant.passes.fold_bn import fold_bn
from fxquant.passes.hoist_rank import hoist_rank
from fxquant.passes.insert import insert
from fxquant.passes.split_ops import split_ops
from fxquant.report.explain import explain
from fxquant.targets import by_name

log = logging.getLogger("fxquant")


def fuse_fx(
    model: nn.Module,
    fuse_custom_config: FuseCustomConfig | Mapping[str, Any] | None = None,
    backend_config: object = None,
) -> nn.Module:
    """Fold batch norms into the ops before them. Optional: `prepare_fx` does the same.

    The model has to be in eval mode. It is not changed; the result shares its tensors and plain attributes.
    Activations and adds are not folded into classes: they join their kernel as groups when the model is prepared.
    """
    _refuse_backend_config(backend_config)
    if model.training:
        raise StageError("fuse_fx folds batch norms, so the model must be in eval mode. Call model.eval() first.")
    check_preserved(model, as_fuse_config(fuse_custom_config).preserved_attributes, "fuse_fx")
    fused = capture(model, None, method="symbolic")
    run_passes(fused, (("hoist_rank", hoist_rank), ("fold_bn", fold_bn)), "fused")
    return fused


def prepare_fx(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, Any] | None = None,
    _equalization_config: object = None,
    backend_config: object = None,
    *,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    concrete_args: Mapping[str, Any] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    strict: bool = True,
) -> nn.Module:
    """Capture a model in eval mode, fold batch norms, and insert observers where its rules ask for int8.

    `qconfig_mapping` is a QConfigMapping, a qconfig_dict, a callable `(name, kind, op) -> QConfig | "float" | None`, or
    a tuple of such. `concrete_args` fixes plain arguments of `forward`, by name. Run data through the result
    (`calibrate`), then `convert_fx` it. The model itself is not changed.
    """
    _refuse_backend_config(backend_config)
    if _equalization_config is not None:
        raise ConfigError("prepare_fx(_equalization_config=...) is not supported. Leave it out.")
    if model.training:
        raise StageError("prepare_fx is for post-training quantization: call model.eval() first.")
    _refuse_prepared(model, "prepare_fx")
    rules = Rules(qconfig_mapping, functools.partial(same_op, OPS))
    if rules.is_training:
        raise ConfigError(
            "prepare_fx was given a qconfig for training (a learned spec or a fake-quantize module). "
            "Use a post-training qconfig, such as get_default_qconfig('x86')."
        )
    custom = as_prepare_config(_either(prepare_custom_config, prepare_custom_config_dict, "prepare_custom_config"))
    check_preserved(model, custom.preserved_attributes, "prepare_fx")
    args, kwargs = _examples(example_inputs, example_kwargs)
    _check_concrete(model, concrete_args or {}, args, kwargs)
    hardware = by_name(target)
    assembled = assemble(model, args, kwargs, rules, custom, method=method, strict=strict, concrete=concrete_args)
    prepared = assembled.model
    _check_boundaries(assembled)
    scopes = {id(region): scope for region, scope in assembled.regions()}
    passes = (
        ("hoist_rank", hoist_rank),
        ("fold_bn", lambda region: fold_bn(region, _fusion_allowed(region, scopes[id(region)].rules))),
        ("drop_noops", drop_noops),
        ("split_ops", lambda region: split_ops(region, hardware)),
        ("annotate", lambda region: annotate(region, scopes[id(region)].rules, hardware)),
        ("mark_custom", mark_custom),
        ("insert", insert),
        ("watch_means", watch_means),
        ("quantize_boundary", lambda region: _quantize_boundary(region, scopes[id(region)], hardware)),
    )
    run_passes(prepared, passes, "prepared", only=lambda region: id(region) in scopes)
    for scope in {id(scope.rules): scope for scope in reversed(assembled.scopes)}.values():
        _check_rules(scope.rules, scope.model, strict)
    if isinstance(prepared, Region):
        prepared._region.num_inputs = len(args)
    log.info("prepared %s: %s", type(model).__name__, explain(prepared).summary())
    return prepared


def convert_fx(
    graph_module: nn.Module,
    convert_custom_config: ConvertCustomConfig | Mapping[str, Any] | None = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: object = None,
    backend_config: object = None,
    keep_original_weights: bool = False,
    *,
    convert_custom_config_dict: Mapping[str, Any] | None = None,
    engine: Engine = "onednn",
) -> nn.Module:
    """Turn a calibrated model into one with int8 weights on plain integer tensors. The input is not changed.

    "onednn" runs it on torch's int8 kernels, "onnxruntime" and "openvino" in those runtimes, "auto" on the one of them
    that is fastest here, by measuring. "reference" is the plain quantize/dequantize graph, which the others agree with.
    """
    _refuse_backend_config(backend_config)
    if qconfig_mapping is not None:
        raise ConfigError("convert_fx(qconfig_mapping=...): rules are given to prepare_fx. Leave it out here.")
    if keep_original_weights:
        raise ConfigError("convert_fx(keep_original_weights=True): keep the float model instead; it is not changed.")
    check_engine(engine)
    custom = as_convert_config(_either(convert_custom_config, convert_custom_config_dict, "convert_custom_config"))
    check_preserved(graph_module, custom.preserved_attributes, "convert_fx")
    _check_calibrated(graph_module)
    converted = quantize_custom(copy.deepcopy(graph_module), custom.observed_to_quantized_mapping)
    fresh = {id(region) for _, region in regions(converted) if region._region.stage == "prepared"}
    tied: Tied = {}
    into_int8 = ("convert", lambda region: convert(region, tied=tied))
    run_passes(converted, (("correct_biases", correct_biases),), "prepared", only=lambda region: id(region) in fresh)
    for passes in ((into_int8, ("open_boundary", open_boundary)), (("connect_regions", connect_regions),)):
        run_passes(converted, passes, "converted", only=lambda region: id(region) in fresh)
    return apply_engine(converted, engine)


def convert_to_reference_fx(
    graph_module: nn.Module, convert_custom_config: ConvertCustomConfig | Mapping[str, Any] | None = None
) -> nn.Module:
    """`convert_fx` with the plain QDQ graph, whatever the default engine."""
    return convert_fx(graph_module, convert_custom_config, engine="reference")


def _refuse_backend_config(backend_config: object) -> None:
    if backend_config is not None:
        raise ConfigError(
            "backend_config is torch.ao's description of hardware. Give target='x86' or a fxquant.Target."
        )


def _refuse_prepared(model: nn.Module, caller: str) -> None:
    for path, region in regions(model):
        if region._region.stage == "prepared" or (not path and region._region.stage == "converted"):
            where = f"its submodule {path!r}" if path else "it"
            raise StageError(
                f"{caller} got a model of which {where} is already {region._region.stage}. Give the float model."
            )


def _either(config: object, older: object, name: str) -> object:
    """An argument under its own name or, as older code has it, with `_dict` at the end."""
    if config is not None and older is not None:
        raise ConfigError(f"give {name} or {name}_dict, not both.")
    return config if config is not None else older


def _check_boundaries(assembled: Assembled) -> None:
    """Integers at the boundary need a graph that begins and ends there."""
    whole = {path for path, _ in regions(assembled.model)}
    for scope in assembled.scopes:
        if scope.path not in whole and (scope.custom.input_quantized_indexes or scope.custom.output_quantized_indexes):
            what = f"standalone module {scope.path!r}" if scope.path else "the model"
            raise ConfigError(
                f"input_quantized_indexes and output_quantized_indexes need {what} to be captured as one graph, and it "
                "does not trace. fxquant.wrap the parts that do not, or leave its boundary in float."
            )


def _quantize_boundary(region: Region, scope: Scope, target: Target) -> Region:
    if region._region.path != scope.path:
        return region
    chosen = scope.rules.choose(Site(path=scope.path, kind="", spelling=None)).qconfig
    spec = chosen.output_spec if chosen is not None else None
    inputs, outputs = scope.custom.input_quantized_indexes, scope.custom.output_quantized_indexes
    return quantize_boundary(region, inputs, outputs, spec or target.activation)


def _examples(inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


def _check_concrete(
    model: nn.Module, concrete: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
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


def _fusion_allowed(region: Region, rules: Rules) -> Any:
    known = sites(region, OPS)

    def allowed(node: fx.Node) -> bool:
        return rules.choose(known[node]).qconfig is not None and not is_left_alone(node, region)

    return allowed


def _check_rules(rules: Rules, model: nn.Module, strict: bool) -> None:
    problems = rules.unmatched(path for path, _ in model.named_modules() if path)
    if not problems:
        return
    message = "\n".join(problems) + "\nRun fxquant.explain(prepared) or model.named_modules() to list the paths."
    if strict:
        raise ConfigError(message + " strict=False makes this a warning.")
    warnings.warn(message, stacklevel=3)


def _check_calibrated(model: nn.Module) -> None:
    found = [(path, region) for path, region in regions(model)]
    if not found or not any(region._region.stage == "prepared" for _, region in found):
        stage = f"is {found[0][1]._region.stage}" if found else f"is a plain {type(model).__name__}"
        raise StageError(f"convert_fx needs a model from prepare_fx; this one {stage}.")
    quantizers = [module for module in model.modules() if isinstance(module, FakeQuant)]
    static = [q for q in quantizers if q.observer is not None and q.spec.observer != "fixed"]
    if static and not any(q.observer is not None and q.observer.seen for q in static):
        raise StageError(
            f"the model was not calibrated: none of its {len(static)} quantizers saw data. "
            "Run calibrate(prepared, loader), or your own loop of prepared(batch), before convert_fx."
        )
