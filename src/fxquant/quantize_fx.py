"""The FX flow: fuse, prepare, calibrate, convert, with the names and arguments that FX users know.

fuse_fx      capture, fold_bn
prepare_fx   capture, fold_bn, drop_noops, annotate, insert
convert_fx   convert, lower
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor, fx, nn

from fxquant.capture import capture
from fxquant.core.custom_config import ConvertCustomConfig, FuseCustomConfig, PrepareCustomConfig
from fxquant.core.graph import Region, regions
from fxquant.core.mapping import Rules
from fxquant.core.ops import OPS
from fxquant.core.target import Target
from fxquant.core.verify import run_passes
from fxquant.engines.lower import lower
from fxquant.errors import ConfigError, StageError
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.passes.annotate import annotate
from fxquant.passes.candidates import same_op, sites
from fxquant.passes.convert import convert
from fxquant.passes.drop_noops import drop_noops
from fxquant.passes.fold_bn import fold_bn
from fxquant.passes.insert import insert
from fxquant.targets import by_name

Method = Literal["auto", "symbolic", "export"]
Engine = Literal["onednn", "reference"]


def fuse_fx(
    model: nn.Module,
    fuse_custom_config: FuseCustomConfig | Mapping[str, Any] | None = None,
    backend_config: object = None,
) -> Region:
    """Fold batch norms into the ops before them. Optional: `prepare_fx` does the same.

    The model has to be in eval mode. It is not changed; the result shares its tensors and plain attributes.
    Activations and adds are not folded into classes: they join their kernel as groups when the model is prepared.
    """
    _refuse_backend_config(backend_config)
    if model.training:
        raise StageError("fuse_fx folds batch norms, so the model must be in eval mode. Call model.eval() first.")
    fused = capture(model, None, method="symbolic")
    run_passes(fused, (("fold_bn", fold_bn),), "fused")
    return fused


def prepare_fx(
    model: nn.Module,
    qconfig_mapping: Any,
    example_inputs: Any,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, Any] | None = None,
    _equalization_config: object = None,
    backend_config: object = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    strict: bool = True,
) -> Region:
    """Capture a model in eval mode, fold batch norms, and insert observers where its rules ask for int8.

    `qconfig_mapping` is a QConfigMapping, a qconfig_dict, a callable `(name, kind, op) -> QConfig | "float" | None`, or
    a tuple of such. Run data through the result (`calibrate`), then `convert_fx` it. The model itself is not changed.
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
    custom = _prepare_config(prepare_custom_config)
    args, kwargs = _examples(example_inputs, example_kwargs)
    hardware = by_name(target)
    prepared = capture(
        model,
        args,
        kwargs,
        method=method,
        leaf_names=custom.non_traceable_module_names,
        leaf_classes=custom.non_traceable_module_classes,
    )
    passes = (
        ("fold_bn", lambda region: fold_bn(region, _fusion_allowed(region, rules))),
        ("drop_noops", drop_noops),
        ("annotate", lambda region: annotate(region, rules, hardware)),
        ("insert", insert),
    )
    run_passes(prepared, passes, "prepared")
    _check_rules(rules, model, strict)
    prepared._region.num_inputs = len(args)
    return prepared


def convert_fx(
    graph_module: nn.Module,
    convert_custom_config: ConvertCustomConfig | Mapping[str, Any] | None = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: object = None,
    backend_config: object = None,
    keep_original_weights: bool = False,
    *,
    engine: Engine = "onednn",
) -> Region:
    """Turn a calibrated model into one with int8 weights on plain integer tensors. The input is not changed.

    "onednn" runs it on torch's int8 kernels, "reference" is the plain quantize/dequantize graph; their outputs agree.
    """
    _refuse_backend_config(backend_config)
    if qconfig_mapping is not None:
        raise ConfigError("convert_fx(qconfig_mapping=...): rules are given to prepare_fx. Leave it out here.")
    if keep_original_weights:
        raise ConfigError("convert_fx(keep_original_weights=True): keep the float model instead; it is not changed.")
    _check_engine(engine)
    if isinstance(convert_custom_config, Mapping):
        ConvertCustomConfig.from_dict(convert_custom_config)
    _check_calibrated(graph_module)
    converted = copy.deepcopy(graph_module)
    run_passes(converted, (("convert", convert),), "converted")
    apply_engine(converted, engine)
    assert isinstance(converted, Region)
    return converted


def apply_engine(model: nn.Module, engine: Engine) -> nn.Module:
    """Make the regions of a converted model (QDQ graphs) run on an engine, in place."""
    _check_engine(engine)
    if engine == "onednn":
        run_passes(model, (("lower", lower),), "converted")
    return model


def _check_engine(engine: str) -> None:
    if engine not in get_args(Engine):
        raise ConfigError(f"engine {engine!r} is unknown. Known: {', '.join(get_args(Engine))}.")


def convert_to_reference_fx(
    graph_module: nn.Module, convert_custom_config: ConvertCustomConfig | Mapping[str, Any] | None = None
) -> Region:
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


def _prepare_config(config: PrepareCustomConfig | Mapping[str, Any] | None) -> PrepareCustomConfig:
    if isinstance(config, Mapping):
        return PrepareCustomConfig.from_dict(config)
    return config if config is not None else PrepareCustomConfig()


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


def _fusion_allowed(region: Region, rules: Rules) -> Any:
    known = sites(region, OPS)

    def allowed(node: fx.Node) -> bool:
        return rules.choose(known[node]).qconfig is not None

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
