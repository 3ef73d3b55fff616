"""One call from a float model to an int8 one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from torch import nn

from fxquant.algorithms import Algorithm
from fxquant.algorithms.efforts import Effort, by_effort
from fxquant.archive.archive import read_archive, write_archive
from fxquant.arguments import check_calibrated, either, read_examples, refuse_prepared, without
from fxquant.capture import Method, Sizes
from fxquant.capture.canonical.as_plain import as_plain
from fxquant.capture.run_untraced import evaluating
from fxquant.config.custom_config import ConvertCustomConfig, PrepareCustomConfig, as_convert_config
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.target import Target
from fxquant.convert_model import convert_on_engines
from fxquant.engines.choose import AUTO, apply_engine, check_engine, fastest
from fxquant.engines.engine import Engine
from fxquant.engines.native.settings import Native
from fxquant.engines.table import as_engine
from fxquant.errors import ArchiveError, ConfigError, FxQuantError
from fxquant.flows.calibrate import as_example, calibrate, peek
from fxquant.flows.constant_inputs import warn_of_constant_inputs
from fxquant.flows.decide import adapt, decide
from fxquant.flows.eaten import find_eaten, warn_eaten
from fxquant.graph.check_model import refuse_other
from fxquant.graph.hooks import warn_of_lost_hooks
from fxquant.precision.auto import Precision, assured, check_precision, keep_first
from fxquant.quantize_fx import convert_fx, prepare_fx
from fxquant.targets import by_name
from fxquant.targets.defaults import Mode, default_dynamic_qconfig, weight_only_qconfig
from fxquant.tuning.watch_products import watch_products

MODEL_FILE = "best_model.fq"  # in a directory that a search saved to

_Example: TypeAlias = tuple[object, Mapping[str, object] | None]  # positional inputs in any form, and keywords


def quantize(
    model: nn.Module,
    calibration_data: Iterable[object] | None = None,
    *,
    mode: Mode = "static",
    qconfig_mapping: object = None,
    ignore: Iterable[object] = (),
    example_inputs: object = None,
    example_kwargs: Mapping[str, object] | None = None,
    concrete_args: Mapping[str, object] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    sizes: Sizes = "example",
    num_batches: int | None = None,
    progress: bool = False,
    strict: bool = True,
    algorithms: Iterable[Algorithm] | None = None,
    precision: Precision = "auto",
    budget: float | None = None,
    effort: Effort = "balanced",
    engine: Engine | Native | str | None = None,
    prepare_custom_config: PrepareCustomConfig | Mapping[str, object] | None = None,
    convert_custom_config: ConvertCustomConfig | Mapping[str, object] | None = None,
    prepare_custom_config_dict: Mapping[str, object] | None = None,
    convert_custom_config_dict: Mapping[str, object] | None = None,
) -> nn.Module:
    """Quantize a model in one call: prepare, calibrate, convert.

    "static" needs calibration data: an iterable of batches (see `calibrate`). "dynamic" finds activation ranges at run
    time and "weight_only" stores int8 weights; both need only `example_inputs`, or a batch of data to take them from.
    Data that is given is used there, too: the `algorithms` (fxquant.algorithms; () does without) correct biases by it.

    `ignore` names what stays in float: module paths, with all below them, and module classes or functions, such as
    `ignore=["head", nn.Softmax]`. `progress` shows a bar, in a terminal.

    With `precision="auto"` the result is compared with the float model on a few batches. Where it falls short, the
    tensors that cause it get other ranges or more precision, cheapest first, each change measured; a warning and
    `explain` say what was lifted. By default that may add a tenth to the time of the int8 model; `budget` allows more:
    it is the time that the result may take, as predicted, as a share of the float model's. `precision="int8"` leaves
    all in int8, and so do rules of one's own: then a warning tells what falls short. `effort` chooses the `algorithms`,
    if none are given: "fast" is one pass over the data, "best" may take minutes.

    The model runs on the native engine where that can be (`fxquant[native]`), else on torch's oneDNN kernels.
    `engine="auto"` converts it for each engine that is installed, from one calibration, and keeps the one that
    is fastest on the example inputs. With an `Engine` of one's own, its target is what the model is prepared for.

    Example:
        >>> quantized = fq.quantize(model, loader)
        >>> quantized(loader[0]).shape
        torch.Size([2, 4])
    """
    model = as_plain(model, "quantize", training=False)
    refuse_prepared(model, "quantize")
    example, data = _example(model, calibration_data, example_inputs, example_kwargs)
    check_engine(engine)
    check_precision(precision, budget)
    if target is None and isinstance(engine, Engine):
        target = engine.target()
    converting = as_convert_config(either(convert_custom_config, convert_custom_config_dict, "convert_custom_config"))
    with evaluating(model):
        prepared = prepare_fx(
            model,
            without(_mapping(mode, target) if qconfig_mapping is None else qconfig_mapping, ignore),
            example[0],
            prepare_custom_config,
            prepare_custom_config_dict=prepare_custom_config_dict,
            example_kwargs=example[1],
            target=target,
            method=method,
            sizes=sizes,
            strict=strict,
            algorithms=by_effort(effort) if algorithms is None else algorithms,
            concrete_args=concrete_args,
        )
    automatic = precision == "auto" and data is not None
    kept = _calibrate(prepared, data, num_batches=num_batches, keep=automatic, progress=progress)
    check_calibrated(prepared, "quantize")
    if engine == AUTO:
        converted, chosen = _convert_for_fastest(prepared, converting, example)
        warn_of_constant_inputs(decide(prepared, engine=chosen), stacklevel=2)
    else:
        chosen = as_engine(engine)
        prepared = adapt(prepared, engine=chosen)
        converted = _convert_for(prepared, converting, chosen, warn=not automatic)
    return assured(
        model,
        prepared,
        converted,
        kept,
        engine=chosen,
        convert=lambda decided, on: convert_fx(decided, converting, engine=on),
        budget=budget,
        may_change=qconfig_mapping is None,
        finer=effort != "fast",
    )


def _example(
    model: nn.Module, data: Iterable[object] | None, inputs: object, kwargs: Mapping[str, object] | None
) -> tuple[_Example, Iterable[object] | None]:
    """Return the example inputs as they are given, or the first batch of the data; and the data, with that batch."""
    if inputs is not None or kwargs is not None:
        return (inputs if inputs is not None else (), kwargs), data
    if data is None:
        raise ConfigError("quantize needs calibration data, or example_inputs for the modes that need none.")
    batch, data = peek(data)
    return as_example(batch, model), data


def _calibrate(
    prepared: nn.Module, data: Iterable[object] | None, *, num_batches: int | None, keep: bool, progress: bool
) -> list[object]:
    """Calibrate on the data, if there is any. With `keep`, also watch the inputs and keep the first batches."""
    if data is None:
        return []
    if not keep:
        calibrate(prepared, data, num_batches=num_batches, progress=progress)
        return []
    watch_products(prepared)
    kept = keep_first(data)
    calibrate(prepared, kept, num_batches=num_batches, progress=progress)
    return kept.batches


def _convert_for_fastest(
    prepared: nn.Module, converting: ConvertCustomConfig, example: _Example
) -> tuple[nn.Module, Engine]:
    args, kwargs = read_examples(*example)
    found = convert_on_engines(prepared, converting)
    converted = fastest(found, lambda made: made(*args, **kwargs))
    return converted, as_engine(next(name for name, made in found.items() if made is converted))


def _convert_for(prepared: nn.Module, converting: ConvertCustomConfig, engine: Engine, *, warn: bool) -> nn.Module:
    decided = decide(prepared, engine=engine, runs=False)
    warn_of_constant_inputs(decided, stacklevel=3)
    if warn:
        warn_eaten(find_eaten(prepared, decided), stacklevel=3)
    return convert_fx(decided, converting, engine=engine)


def _mapping(mode: str, target: Target | str | None) -> QConfigMapping:
    if mode == "static":
        hardware = by_name(target)
        return QConfigMapping().set_global(hardware.qconfig)
    if mode == "dynamic":
        return QConfigMapping().set_global(default_dynamic_qconfig)
    if mode == "weight_only":
        return QConfigMapping().set_global(weight_only_qconfig)
    raise ConfigError(f"mode {mode!r} is unknown. Known: 'static', 'dynamic', 'weight_only'.")


def save(model: nn.Module, path: str | Path) -> Path:
    """Write a converted model into one file, with int8 weights inside. `load` reads it anywhere.

    Python code of the model's own is not in it: a model that does not trace as a whole needs its float model to load.

    Example:
        >>> fq.save(fq.quantize(model, loader), "net.fq").name
        'net.fq'
    """
    refuse_other(model, "save")
    target = Path(path)
    warn_of_lost_hooks(model, "save")
    write_archive(model, target)
    return target


def load(
    path: str | Path, float_model: nn.Module | None = None, *, engine: Engine | Native | str | None = None
) -> nn.Module:
    """Read a model that `save` wrote, and lower it for this machine. Nothing from the file is run as code.

    A model of one graph needs no class. `float_model` gives what a file cannot hold: Python code around the regions,
    modules of the user's own, wrapped functions. It has to have the structure of the model that was quantized; its
    weights do not matter, and it is not changed. Of a directory, the model that a search saved there is read.

    Files know of no engine: without `engine`, a model runs on the default of `quantize` and `convert_fx`, whatever it
    was saved from.

    Example:
        >>> path = fq.save(fq.quantize(model, loader), "net.fq")
        >>> fq.load(path)(loader[0]).shape
        torch.Size([2, 4])
    """
    check_engine(engine)
    path = Path(path) / MODEL_FILE if os.path.isdir(path) else Path(path)  # Path.is_dir raises for long names
    model = read_archive(path, float_model)
    try:
        return apply_engine(model, engine)
    except ArchiveError:
        raise
    except Exception as error:  # of a kernel or a runtime that cannot take what the checks of the file let through
        name = engine if isinstance(engine, str) else as_engine(engine).name
        text = str(error) if isinstance(error, FxQuantError) else f"{type(error).__name__}: {error}"
        raise ArchiveError(f"{str(path)!r} cannot run on engine {name!r}. {text}") from error
