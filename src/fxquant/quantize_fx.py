"""The FX flow: fuse, prepare, calibrate, convert, with the names and arguments that FX users know.

fuse_fx      capture, FUSE
prepare_fx   prepare_model (capture_with_config, PREPARE, watch for each target)
freeze       decide, FREEZE
convert_fx   convert_model (decide, CONVERT, CONNECT), the engine

The passes: flows/pipelines.py. What is decided, and when: flows/decide.py.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from fxquant.algorithms import DEFAULT, Algorithm
from fxquant.arguments import (
    check_backend_config,
    check_calibrated,
    either,
    is_calibrated,
    read_algorithms,
    read_rules,
    read_target,
    refuse_equalization,
    refuse_prepared,
)
from fxquant.capture import Method, Sizes
from fxquant.capture.canonical.as_plain import as_plain
from fxquant.capture.canonical.bake import bake_regions, parametrized, pruned
from fxquant.capture.guards import guard_rank
from fxquant.config.check_fields import check_arguments
from fxquant.config.custom_config import (
    ConvertCustomConfig,
    FuseCustomConfig,
    PrepareCustomConfig,
    as_convert_config,
    as_fuse_config,
    as_prepare_config,
    check_preserved,
)
from fxquant.config.rules import Rules
from fxquant.config.target import Target
from fxquant.convert_model import convert_model, convert_on_engines
from fxquant.engines.choose import AUTO, apply_engine, check_engine, fastest, run_examples
from fxquant.engines.engine import Engine
from fxquant.engines.native.settings import Native
from fxquant.engines.table import REFERENCE, as_engine
from fxquant.errors import ConfigError, StageError
from fxquant.flows.decide import decide
from fxquant.flows.old_optimizers import warn_of_old_optimizers
from fxquant.flows.pipelines import FREEZE, FUSE
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.context import Context
from fxquant.graph.first_call import Waiting, waiting_converted
from fxquant.graph.own import copy_model
from fxquant.graph.region import stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.run_passes import run_passes
from fxquant.prepare_model import Asked, capture_without_inputs, prepare_model


def fuse_fx(
    model: nn.Module,
    fuse_custom_config: FuseCustomConfig | Mapping[str, object] | None = None,
    backend_config: object = None,
    *,
    fuse_custom_config_dict: Mapping[str, object] | None = None,
) -> nn.Module:
    """Fold batch norms into the ops before them. Optional: `prepare_fx` does the same.

    The model has to be in eval mode. It is not changed; the result shares its parameters.
    A relu behind a convolution or linear stands beside it: `fused.conv1[0]` and `fused.conv1[1]`. Other activations and
    adds join their kernel when the model is prepared.

    Example:
        >>> fused = fq.fuse_fx(model)
        >>> any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
        False
    """
    check_backend_config(backend_config)
    model = as_plain(model, "fuse_fx", training=False)
    if model.training:
        raise StageError("fuse_fx folds batch norms, so the model must be in eval mode. Call model.eval() first.")
    refuse_prepared(model, "fuse_fx")
    custom = as_fuse_config(either(fuse_custom_config, fuse_custom_config_dict, "fuse_custom_config"))
    check_preserved(model, custom.preserved_attributes, "fuse_fx")
    fused = capture_without_inputs(model)
    run_passes(fused, FUSE, Context(guard=guard_rank))
    return fused


def prepare_fx(
    model: nn.Module,
    qconfig_mapping: object,
    example_inputs: object = None,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, object] | None = None,
    _equalization_config: object = None,
    backend_config: object = None,
    *,
    prepare_custom_config_dict: Mapping[str, object] | None = None,
    example_kwargs: Mapping[str, object] | None = None,
    concrete_args: Mapping[str, object] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    sizes: Sizes = "example",
    strict: bool = True,
    algorithms: Iterable[Algorithm] = DEFAULT,
) -> nn.Module:
    """Capture a model in eval mode, fold batch norms, and insert observers where its rules ask for int8.

    `qconfig_mapping` is a QConfigMapping, a QConfig or Spec for all, a qconfig_dict, a callable
    `(name, kind, op) -> QConfig | "float" | None`, or a tuple of such. A rule that matches nothing is an error; with
    `strict=False` a warning. `prepare_custom_config` names modules to leave as they are, integer inputs and outputs,
    and more (PrepareCustomConfig).

    `example_inputs` is a tensor, a tuple of positional arguments or a dict of keyword arguments (or one that is the
    only argument); `example_kwargs` are more of the latter. `concrete_args` fixes plain arguments of `forward`, by
    name. Run data through the result (`calibrate`), then `convert_fx` it. The model itself is not changed. Without
    example inputs it is captured at its first call; until then `.graph` is that of the float model. `sizes="any"` fixes
    no size and no length of a list that the example shows: code that depends on them runs as written, around the parts
    that do not. `method` is how the graph is found: "auto" takes the first of "symbolic" (torch.fx), "export"
    (torch.export) and "piecewise" (graphs inside the model's own Python) that does the model justice.

    `algorithms` (fxquant.algorithms) make the result better from calibration to conversion; () does without.

    `target` is hardware: a name, such as "x86-vnni", or a `Target`; `backend_config` is torch.ao's description of it.
    Without either, what any of the engines on this machine needs is observed, and `convert_fx(engine=...)` decides.

    Example:
        >>> prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (loader[0],))
        >>> quantized = fq.convert_fx(fq.calibrate(prepared, loader))
    """
    refuse_equalization(_equalization_config, "prepare_fx")
    model = as_plain(model, "prepare_fx", training=False)
    if model.training:
        raise StageError("prepare_fx is for post-training quantization: call model.eval() first.")
    refuse_prepared(model, "prepare_fx")
    check_arguments(prepare_fx, example_kwargs=example_kwargs, concrete_args=concrete_args, method=method, sizes=sizes)
    rules = read_rules(qconfig_mapping, target, "calibration")
    _refuse_training(rules)
    custom = either(prepare_custom_config, prepare_custom_config_dict, "prepare_custom_config")
    context = Context(
        rules=rules,
        custom=_read_custom(model, rules, custom, "prepare_fx"),
        target=read_target(target, backend_config, rules),
        strict=strict,
        algorithms=read_algorithms(algorithms),
    )
    asked = Asked(context=context, method=method, sizes=sizes, concrete=concrete_args or {})
    return prepare_model(model, asked, example_inputs, example_kwargs)


def prepare_qat_fx(
    model: nn.Module,
    qconfig_mapping: object,
    example_inputs: object = None,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, object] | None = None,
    backend_config: object = None,
    *,
    prepare_custom_config_dict: Mapping[str, object] | None = None,
    example_kwargs: Mapping[str, object] | None = None,
    concrete_args: Mapping[str, object] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    sizes: Sizes = "example",
    strict: bool = True,
) -> nn.Module:
    """Capture a model in train mode for training with quantization in the loop. All arguments are as for `prepare_fx`.

    The result trains like any module, under the float model's parameter names; `convert_fx` it afterwards. The model
    itself is not changed: the result has parameters of its own, from which the optimizer is made.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping(), (loader[0],))
        >>> prepared(loader[0]).sum().backward()  # train it as any model
        >>> quantized = fq.convert_fx(prepared.eval())
    """
    model = as_plain(model, "prepare_qat_fx", training=True)
    refuse_prepared(model, "prepare_qat_fx")
    if not model.training:
        raise StageError(
            "prepare_qat_fx prepares a model for training: call model.train() first. "
            "For a model that is not trained any more, use prepare_fx and calibrate."
        )
    check_arguments(
        prepare_qat_fx, example_kwargs=example_kwargs, concrete_args=concrete_args, method=method, sizes=sizes
    )
    rules = read_rules(qconfig_mapping, target, "qat")
    if not rules.is_training and not rules.has_setters:
        raise ConfigError(
            "prepare_qat_fx was given no spec for training. Use get_default_qat_qconfig_mapping('x86'), "
            "or say how a spec is trained: Spec(learn='ste')."
        )
    _warn_of_baked(model)
    custom = either(prepare_custom_config, prepare_custom_config_dict, "prepare_custom_config")
    context = Context(
        rules=rules,
        custom=_read_custom(model, rules, custom, "prepare_qat_fx"),
        target=read_target(target, backend_config, rules),
        strict=strict,
        training=True,
    )
    warn_of_old_optimizers(model)
    own = clone_tree(model, share_tensors=False, share_objects=False)
    asked = Asked(context=context, method=method, sizes=sizes, concrete=concrete_args or {})
    return prepare_model(own, asked, example_inputs, example_kwargs)


def _refuse_training(rules: Rules) -> None:
    if rules.is_training:
        raise ConfigError(
            "prepare_fx was given a qconfig for training (a learned spec or a fake-quantize module). "
            "Use a post-training qconfig, such as get_default_qconfig('x86')."
        )


def _warn_of_baked(model: nn.Module) -> None:
    if masked := pruned(model):
        warnings.warn(
            f"{_some(masked)}: training does not keep the masks of torch.nn.utils.prune. The zeros are there at its "
            "start; set them again after each step.",
            stacklevel=3,
        )
    if made := parametrized(model):
        warnings.warn(
            f"{_some(made)}: a plain parameter is trained, with the value that the parametrization gives now. "
            "To train under it, register it again, on the modules of the model that prepare_qat_fx returns.",
            stacklevel=3,
        )


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"


def _read_custom(model: nn.Module, rules: Rules, given: object, caller: str) -> PrepareCustomConfig:
    custom = as_prepare_config(given).with_standalone(rules.mapping.standalone)
    check_preserved(model, custom.preserved_attributes, caller)
    return custom


def freeze(model: nn.Module, *, engine: Engine | Native | str | None = None) -> nn.Module:
    """Return the model as it will be deployed, still in float: batch norms folded, dropout gone, every scale fixed.

    It computes what the converted graph computes; an engine may round a value to the next step. `convert_fx` takes it
    on. The input is not changed.

    A model that was prepared without a target gets the int8 form that suits `engine`, by default that of `convert_fx`,
    and keeps it on every engine from here on. The engine need not be there.

    Example:
        >>> prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (loader[0],))
        >>> frozen = fq.freeze(fq.calibrate(prepared, loader))  # rounds as the int8 model will
    """
    if engine == AUTO:
        raise ConfigError("freeze(engine='auto'): the form is fixed here, before anything is measured. Name an engine.")
    chosen = as_engine(engine)
    check_calibrated(model, "freeze")
    frozen = decide(bake_regions(copy_model(model).eval()), engine=chosen, in_place=True)
    run_passes(frozen, FREEZE, Context(), only=lambda region: stage_of(region) is Stage.PREPARED)
    return frozen


def convert_fx(
    graph_module: nn.Module,
    convert_custom_config: ConvertCustomConfig | Mapping[str, object] | None = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: object = None,
    backend_config: object = None,
    keep_original_weights: bool = False,
    *,
    convert_custom_config_dict: Mapping[str, object] | None = None,
    engine: Engine | Native | str | None = None,
) -> nn.Module:
    """Turn a calibrated model into one with int8 weights on plain integer tensors. The input is not changed.

    One that saw no data becomes a model that waits for the state_dict of a calibrated one, and does not run before. If
    it was prepared without example inputs, too, its first call is the example, and what `load_state_dict` was given is
    checked then.

    It runs as machine code where that can be made (`engine="native"`, extra `fxquant[native]`), else on torch's int8
    ops ("onednn"). A model on machine code moves on to torch's ops, for good, when `torch.jit.trace`,
    `torch.jit.script` or `torch.export` writes them down, so that these give its very answers. "onnxruntime" and
    "openvino" run it in those runtimes, "auto" on the one of all of these that is fastest here, by measuring.
    "reference" is the plain quantize/dequantize graph, which the others agree with. A runtime takes the sizes of the
    example inputs, at any batch where it can; other calls run on onednn.

    A model that was prepared without a target gets the int8 form that suits the engine, from the same calibration; one
    that was prepared for a target, or trained, or frozen, keeps that form on every engine.

    `convert_custom_config` says what becomes of custom modules (ConvertCustomConfig). `qconfig_mapping`,
    `backend_config` and `keep_original_weights` are there for calls written for torch.ao: rules are given to
    `prepare_fx`.

    Example:
        >>> prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (loader[0],))
        >>> fq.convert_fx(fq.calibrate(prepared, loader))(loader[0]).shape
        torch.Size([2, 4])
    """
    check_backend_config(backend_config)
    if qconfig_mapping is not None:
        raise ConfigError("convert_fx(qconfig_mapping=...): rules are given to prepare_fx. Leave it out here.")
    if keep_original_weights:
        raise ConfigError("convert_fx(keep_original_weights=True): keep the float model instead; it is not changed.")
    check_engine(engine)
    custom = as_convert_config(either(convert_custom_config, convert_custom_config_dict, "convert_custom_config"))
    check_preserved(graph_module, custom.preserved_attributes, "convert_fx")
    if isinstance(graph_module, Waiting):
        again = functools.partial(convert_fx, convert_custom_config=custom, engine=engine)
        return waiting_converted(graph_module, again)
    if engine == AUTO and is_calibrated(graph_module, "convert_fx"):
        run = run_examples(convert_model(graph_module, custom, REFERENCE, tell=True))
        return fastest(convert_on_engines(graph_module, custom), run)
    chosen = REFERENCE if engine == AUTO else as_engine(engine)
    return apply_engine(convert_model(graph_module, custom, chosen, tell=True), engine)


def convert_to_reference_fx(
    graph_module: nn.Module,
    convert_custom_config: ConvertCustomConfig | Mapping[str, object] | None = None,
    _remove_qconfig: bool = True,
    qconfig_mapping: object = None,
    backend_config: object = None,
    *,
    convert_custom_config_dict: Mapping[str, object] | None = None,
) -> nn.Module:
    """`convert_fx` with the plain QDQ graph, whatever the default engine. All arguments are as there.

    Example:
        >>> prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (loader[0],))
        >>> reference = fq.convert_to_reference_fx(fq.calibrate(prepared, loader))
        >>> any("dequantize" in str(node.target) for node in reference.graph.nodes)
        True
    """
    custom = either(convert_custom_config, convert_custom_config_dict, "convert_custom_config")
    return convert_fx(
        graph_module,
        as_convert_config(custom),
        _remove_qconfig,
        qconfig_mapping,
        backend_config,
        engine="reference",
    )
