"""The FX flow: fuse, prepare, calibrate, convert, with the names and arguments that FX users know.

fuse_fx      capture, fold_bn
prepare_fx   assemble (capture), hoist_rank, fold_bn, drop_noops, choose, watch
prepare_qat_fx  the same with pair_bn in the place of fold_bn, and the decisions for one target in that of watch
freeze       decide, correct_biases, drop_dropout, merge_blocks, freeze_quantizers, align_shifts
convert_fx   quantize_custom, freeze, convert, open_boundary, connect_regions, lower

What is decided, and when: flows/decide.py.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fxquant.arguments import (
    check_backend_config,
    check_boundaries,
    check_calibrated,
    check_concrete,
    check_rules,
    either,
    is_calibrated,
    read_examples,
    read_target,
    refuse_prepared,
)
from fxquant.assemble import Scope, assemble
from fxquant.capture import Method, Sizes, capture
from fxquant.capture.as_plain import as_plain
from fxquant.capture.guards import guard_rank
from fxquant.core.custom_config import (
    ConvertCustomConfig,
    FuseCustomConfig,
    PrepareCustomConfig,
    as_convert_config,
    as_fuse_config,
    as_prepare_config,
    check_preserved,
)
from fxquant.core.graph import Region, clone_tree, regions
from fxquant.core.mapping import Rules, Site
from fxquant.core.ops import OPS
from fxquant.core.own import copy_model
from fxquant.core.plan import Request
from fxquant.core.snapshot import left_as_it_was
from fxquant.core.target import Target
from fxquant.core.verify import run_passes
from fxquant.core.waiting import waiting
from fxquant.engines.choose import Engine, apply_engine, available, check_engine, fastest, on_engines, run_examples
from fxquant.errors import ConfigError, StageError
from fxquant.flows.decide import decide, decide_for_training, leaves_target_open, watch_for
from fxquant.passes.align_shifts import align_shifts
from fxquant.passes.bias_correct import correct_biases
from fxquant.passes.boundary import connect_regions, open_boundary
from fxquant.passes.candidates import same_op, sites
from fxquant.passes.choose import choose, fusion_allowed
from fxquant.passes.convert import convert
from fxquant.passes.convert_weights import Tied
from fxquant.passes.custom_modules import quantize_custom
from fxquant.passes.drop_dropout import drop_dropout
from fxquant.passes.drop_noops import drop_noops
from fxquant.passes.fold_bn import fold_bn
from fxquant.passes.freeze import freeze_quantizers
from fxquant.passes.hoist_rank import hoist_rank
from fxquant.passes.merge_blocks import merge_blocks
from fxquant.passes.pair_bn import pair_bn
from fxquant.report.explain import explain
from fxquant.targets import by_name, of_engine, on_cpus

log = logging.getLogger("fxquant")

FREEZE = (
    ("correct_biases", correct_biases),
    ("drop_dropout", drop_dropout),
    ("merge_blocks", merge_blocks),
    ("freeze_quantizers", freeze_quantizers),
    ("align_shifts", align_shifts),
)


def fuse_fx(
    model: nn.Module,
    fuse_custom_config: FuseCustomConfig | Mapping[str, Any] | None = None,
    backend_config: object = None,
    *,
    fuse_custom_config_dict: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Fold batch norms into the ops before them. Optional: `prepare_fx` does the same.

    The model has to be in eval mode. It is not changed; the result shares its parameters.
    Activations and adds are not folded into classes: they join their kernel as groups when the model is prepared.
    """
    check_backend_config(backend_config)
    model = as_plain(model, "fuse_fx", training=False)
    if model.training:
        raise StageError("fuse_fx folds batch norms, so the model must be in eval mode. Call model.eval() first.")
    custom = as_fuse_config(either(fuse_custom_config, fuse_custom_config_dict, "fuse_custom_config"))
    check_preserved(model, custom.preserved_attributes, "fuse_fx")
    with left_as_it_was(model):
        fused = capture(clone_tree(model, share_objects=False), None, method="symbolic")
    passes = (("hoist_rank", hoist_rank), ("fold_bn", lambda region: fold_bn(region, guard=guard_rank)))
    run_passes(fused, passes, "fused")
    return fused


def prepare_fx(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any = None,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, Any] | None = None,
    _equalization_config: object = None,
    backend_config: object = None,
    *,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    concrete_args: Mapping[str, Any] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    sizes: Sizes = "example",
    strict: bool = True,
) -> nn.Module:
    """Capture a model in eval mode, fold batch norms, and insert observers where its rules ask for int8.

    `qconfig_mapping` is a QConfigMapping, a qconfig_dict, a callable `(name, kind, op) -> QConfig | "float" | None`, or
    a tuple of such. `concrete_args` fixes plain arguments of `forward`, by name. Run data through the result
    (`calibrate`), then `convert_fx` it. The model itself is not changed. Without example inputs it is captured at its
    first call. `sizes="any"` fixes no size and no length of a list that the example shows: code that depends on them
    runs as written, around the parts that do not.

    Without a `target`, what any of the engines on this machine needs is observed, and `convert_fx(engine=...)` decides.
    """
    if _equalization_config is not None:
        raise ConfigError("prepare_fx(_equalization_config=...) is not supported. Leave it out.")
    model = as_plain(model, "prepare_fx", training=False)
    if model.training:
        raise StageError("prepare_fx is for post-training quantization: call model.eval() first.")
    refuse_prepared(model, "prepare_fx")
    rules = Rules(qconfig_mapping, functools.partial(same_op, OPS))
    if rules.is_training:
        raise ConfigError(
            "prepare_fx was given a qconfig for training (a learned spec or a fake-quantize module). "
            "Use a post-training qconfig, such as get_default_qconfig('x86')."
        )
    custom = as_prepare_config(either(prepare_custom_config, prepare_custom_config_dict, "prepare_custom_config"))
    custom = custom.with_standalone(rules.mapping.standalone)
    check_preserved(model, custom.preserved_attributes, "prepare_fx")
    asked = Asked(read_target(target, backend_config, rules), method, sizes, strict, concrete_args or {})
    job = functools.partial(_prepare, rules=rules, custom=custom, asked=asked, training=False)
    if example_inputs is None and example_kwargs is None:
        return waiting(model, job)
    return job(model, *read_examples(example_inputs, example_kwargs))


def prepare_qat_fx(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any = None,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, Any] | None = None,
    backend_config: object = None,
    *,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    concrete_args: Mapping[str, Any] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    sizes: Sizes = "example",
    strict: bool = True,
) -> nn.Module:
    """Capture a model in train mode for training with quantization in the loop. Arguments as for `prepare_fx`.

    The result trains like any module, under the float model's parameter names; `convert_fx` it afterwards. The model
    itself is not changed: the result has parameters of its own.
    """
    model = as_plain(model, "prepare_qat_fx", training=True)
    if not model.training:
        raise StageError(
            "prepare_qat_fx prepares a model for training: call model.train() first. "
            "For a model that is not trained any more, use prepare_fx and calibrate."
        )
    refuse_prepared(model, "prepare_qat_fx")
    rules = Rules(qconfig_mapping, functools.partial(same_op, OPS))
    if not rules.is_training and not rules.has_setters:
        raise ConfigError(
            "prepare_qat_fx was given no spec for training. Use get_default_qat_qconfig_mapping('x86'), "
            "or say how a spec is trained: Spec(learn='ste')."
        )
    custom = as_prepare_config(either(prepare_custom_config, prepare_custom_config_dict, "prepare_custom_config"))
    custom = custom.with_standalone(rules.mapping.standalone)
    check_preserved(model, custom.preserved_attributes, "prepare_qat_fx")
    own = clone_tree(model, share_tensors=False, share_objects=False)
    asked = Asked(read_target(target, backend_config, rules), method, sizes, strict, concrete_args or {})
    job = functools.partial(_prepare, rules=rules, custom=custom, asked=asked, training=True)
    if example_inputs is None and example_kwargs is None:
        return waiting(own, job)
    return job(own, *read_examples(example_inputs, example_kwargs))


@dataclass(frozen=True, slots=True)
class Asked:
    """What both calls to prepare take in the same way."""

    target: Target | None
    method: Method
    sizes: Sizes
    strict: bool
    concrete: Mapping[str, Any]


def _prepare(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    rules: Rules,
    custom: PrepareCustomConfig,
    asked: Asked,
    training: bool,
) -> nn.Module:
    strict, fixed = asked.strict, asked.concrete
    check_concrete(model, fixed, args, kwargs)
    with left_as_it_was(model):
        assembled = assemble(
            model, args, kwargs, rules, custom, method=asked.method, sizes=asked.sizes, strict=strict, concrete=fixed
        )
    prepared = assembled.model
    check_boundaries(assembled)
    scopes = {id(region): scope for region, scope in assembled.regions()}
    merge_bn = pair_bn if training else fold_bn
    passes = (
        ("hoist_rank", hoist_rank),
        (merge_bn.__name__, lambda region: merge_bn(region, fusion_allowed(region, scopes[id(region)].rules))),
        ("drop_noops", drop_noops),
        ("choose", lambda region: choose(region, scopes[id(region)].rules)),
        ("request", lambda region: _request(region, scopes[id(region)], asked.target, assembled.scopes[0])),
    )
    for region, scope in assembled.regions():
        scope.rules.see(sites(region, OPS).values())
    run_passes(prepared, passes, "fused", only=lambda region: id(region) in scopes)
    if training:
        decide_for_training(prepared, asked.target or by_name(None))
    else:
        watch_for(prepared, [asked.target] if asked.target is not None else on_cpus())
    for scope in {id(scope.rules): scope for scope in reversed(assembled.scopes)}.values():
        check_rules(scope.rules, scope.model, strict)
    if isinstance(prepared, Region):
        prepared._region.num_inputs = len(args)
    account = explain(prepared)
    log.info("prepared %s: %s", type(model).__name__, account.summary())
    if not any(row.status != "float" for row in account):
        why = "fxquant.explain(prepared) says why" if account.rows or account.left else "it has no ops to quantize"
        warnings.warn(f"nothing in {type(model).__name__} will be quantized: {why}.", stacklevel=3)
    return prepared


def freeze(model: nn.Module) -> nn.Module:
    """The model as it will be deployed, still in float: batch norms folded, dropout gone, every scale fixed.

    It computes what the converted model computes, to one step; `convert_fx` takes it on. The input is not changed.
    """
    check_calibrated(model, "freeze")
    frozen = decide(copy_model(model).eval(), in_place=True)
    run_passes(frozen, FREEZE, "prepared", only=lambda region: region._region.stage == "prepared")
    return frozen


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

    One that saw no data becomes a model that waits for the state_dict of a calibrated one, and does not run before.

    "onednn" runs it on torch's int8 kernels, "onnxruntime" and "openvino" in those runtimes, "auto" on the one of them
    that is fastest here, by measuring. "reference" is the plain quantize/dequantize graph, which the others agree with.
    A runtime takes the sizes of the example inputs, at any batch where it can; other calls run on onednn.

    A model that was prepared without a target gets the int8 form that suits the engine, from the same calibration; one
    that was prepared for a target, or trained, or frozen, keeps that form on every engine.
    """
    check_backend_config(backend_config)
    if qconfig_mapping is not None:
        raise ConfigError("convert_fx(qconfig_mapping=...): rules are given to prepare_fx. Leave it out here.")
    if keep_original_weights:
        raise ConfigError("convert_fx(keep_original_weights=True): keep the float model instead; it is not changed.")
    check_engine(engine)
    custom = as_convert_config(either(convert_custom_config, convert_custom_config_dict, "convert_custom_config"))
    check_preserved(graph_module, custom.preserved_attributes, "convert_fx")
    if engine == "auto" and is_calibrated(graph_module, "convert_fx"):
        run = run_examples(_convert(graph_module, custom, "reference"))
        return fastest(convert_on_engines(graph_module, custom), run)
    name = engine if isinstance(engine, str) else "native"
    return apply_engine(_convert(graph_module, custom, name), engine)


def convert_on_engines(prepared: nn.Module, custom: ConvertCustomConfig) -> dict[str, nn.Module]:
    """A calibrated model on each engine that is there and takes it, in the form that the engine asks for."""
    groups: dict[str | None, list[str]] = {}
    for engine in available():
        groups.setdefault(of_engine(engine) if leaves_target_open(prepared) else None, []).append(engine)
    found: dict[str, nn.Module] = {}
    for engines in groups.values():
        found.update(on_engines(_convert(prepared, custom, engines[0]), tuple(engines)))
    return found or {"reference": _convert(prepared, custom, "reference")}


def _convert(prepared: nn.Module, custom: ConvertCustomConfig, engine: str) -> nn.Module:
    """The QDQ form, decided for an engine where that is open. Without calibration it waits for its state_dict."""
    uncalibrated = not is_calibrated(prepared, "convert_fx")
    decided = decide(copy_model(prepared).eval(), engine=engine, in_place=True)
    converted = quantize_custom(decided, custom.observed_to_quantized_mapping)
    fresh = {id(region) for _, region in regions(converted) if region._region.stage == "prepared"}
    tied: Tied = {}
    into_int8 = ("convert", lambda region: convert(region, tied=tied, waiting=uncalibrated))
    for passes in ((*FREEZE, into_int8, ("open_boundary", open_boundary)), (("connect_regions", connect_regions),)):
        run_passes(converted, passes, "converted", only=lambda region: id(region) in fresh)
    return converted


def convert_to_reference_fx(
    graph_module: nn.Module,
    convert_custom_config: ConvertCustomConfig | Mapping[str, Any] | None = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: object = None,
    backend_config: object = None,
    *,
    convert_custom_config_dict: Mapping[str, Any] | None = None,
) -> nn.Module:
    """`convert_fx` with the plain QDQ graph, whatever the default engine."""
    custom = either(convert_custom_config, convert_custom_config_dict, "convert_custom_config")
    return convert_fx(
        graph_module,
        as_convert_config(custom),
        _remove_qconfig,
        qconfig_mapping,
        backend_config,
        engine="reference",
    )


def _request(region: Region, scope: Scope, target: Target | None, outermost: Scope) -> Region:
    """Write down what is to be decided about a region, beside its rules."""
    own_rules = scope.rules is not outermost.rules
    if region._region.path != scope.path:
        region._region.request = Request(target=target, own_rules=own_rules)
        return region
    chosen = scope.rules.choose(Site(path=scope.path, kind="", spelling=None)).qconfig
    region._region.request = Request(
        target=target,
        inputs=tuple(scope.custom.input_quantized_indexes),
        outputs=tuple(scope.custom.output_quantized_indexes),
        boundary=chosen.output_spec if chosen is not None else None,
        own_rules=own_rules,
    )
    return region
