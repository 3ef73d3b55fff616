"""One call from a float model to an int8 one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from torch import nn
from typing_extensions import Unpack

from fxquant.algorithms import Algorithm
from fxquant.algorithms.efforts import Effort, by_effort
from fxquant.archive.archive import read_archive, write_archive
from fxquant.arguments import (
    Converting,
    Preparing,
    check_calibrated,
    read_examples,
    refuse_prepared,
    spell_out,
    take_converting,
    without,
)
from fxquant.capture.canonical.as_plain import as_plain
from fxquant.capture.run_untraced import evaluating
from fxquant.config.check_fields import check_arguments
from fxquant.config.custom_config import ConvertCustomConfig
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.target import Target
from fxquant.convert_model import convert_on_engines
from fxquant.engines.choose import AUTO, apply_engine, check_engine, fastest
from fxquant.engines.engine import Engine
from fxquant.engines.native.settings import Native
from fxquant.engines.table import as_engine
from fxquant.errors import ArchiveError, CaptureError, ConfigError, FxQuantError
from fxquant.exports import refuse_exported
from fxquant.flows.calibrate import as_example, calibrate, peek, refuse_lists_as_one
from fxquant.flows.constant_inputs import warn_of_constant_inputs
from fxquant.flows.decide import adapt, decide
from fxquant.flows.eaten import find_eaten, warn_eaten
from fxquant.flows.mixed_batches import fullest_call
from fxquant.graph.check_model import refuse_other
from fxquant.graph.hooks import warn_of_lost_hooks
from fxquant.graph.lowering import await_first_call
from fxquant.precision.auto import Kept, Made, Precision, assured, check_precision
from fxquant.quantize_fx import convert_fx, prepare_fx
from fxquant.targets import by_name
from fxquant.targets.defaults import Mode, default_dynamic_qconfig, weight_only_qconfig
from fxquant.targets.x86 import x86
from fxquant.tuning.watch_products import watch_products

MODEL_FILE = "best_model.fq"  # in a directory that a search saved to

_Example: TypeAlias = tuple[object, Mapping[str, object] | None]  # positional inputs in any form, and keywords


class Further(Preparing, Converting, total=False):
    """What `quantize` takes for `prepare_fx` and `convert_fx`."""


@spell_out(Further, prepare_fx, convert_fx)
def quantize(
    model: nn.Module,
    calibration_data: Iterable[object] | None = None,
    *,
    mode: Mode = "static",
    qconfig_mapping: object = None,
    ignore: Iterable[object] = (),
    example_inputs: object = None,
    example_kwargs: Mapping[str, object] | None = None,
    target: Target | str | None = None,
    num_batches: int | None = None,
    progress: bool = False,
    algorithms: Iterable[Algorithm] | None = None,
    precision: Precision = "auto",
    budget: float | None = None,
    effort: Effort = "balanced",
    engine: Engine | Native | str | None = None,
    **further: Unpack[Further],
) -> nn.Module:
    """Quantize a model in one call: prepare, calibrate, convert.

    `mode` "static" needs calibration data: an iterable of batches (see `calibrate`), of which `num_batches` are taken,
    all of them by default. "dynamic" finds activation ranges at run time and "weight_only" stores int8 weights; both
    need `example_inputs` alone, or a batch of data to take them from. `qconfig_mapping` has rules of one's own,
    `target` names hardware, and further arguments (`method`, `sizes`, `strict`, `concrete_args`,
    `prepare_custom_config`) say how the model is captured: all as for `prepare_fx`, and `convert_custom_config` as for
    `convert_fx`. `ignore` names what stays in float: module paths, with all below them, and classes or functions, such
    as `ignore=["head", nn.Softmax]`. `effort` chooses the `algorithms` (fxquant.algorithms; () does without), if none
    are given: "fast" is one pass over the data, "best" may take minutes. `progress` shows a bar, in a terminal.

    The result is compared with the float model on a few batches. Where it falls short, the tensors that cause it get
    other ranges or more precision, for a tenth of the time, or three tenths where that gains much; after a collapse for
    more. `budget` is your own limit: the time of the result, as predicted, as a share of the float model's.
    `precision="int8"` leaves all in int8, and so do rules of one's own; a warning then tells what falls short.

    The model runs on the native engine where that can be (`fxquant[native]`), else on torch's oneDNN kernels.
    `engine="auto"` keeps the engine that is fastest on the example inputs. An `Engine` of one's own brings its target.

    Example:
        >>> quantized = fq.quantize(model, loader)
        >>> quantized(loader[0]).shape
        torch.Size([2, 4])
    """
    converting = take_converting(further, quantize)
    model = as_plain(model, "quantize", training=False)
    refuse_prepared(model, "quantize")
    check_arguments(quantize, budget=budget)
    check_precision(precision, budget)
    example, data = _example(model, calibration_data, example_inputs, example_kwargs, further)
    target = _target(target, engine)
    rules = without(_mapping(mode, target) if qconfig_mapping is None else qconfig_mapping, ignore)
    chosen = by_effort(effort) if algorithms is None else algorithms
    with evaluating(model), _lists_told(model, data if example_inputs is None and example_kwargs is None else None):
        (inputs, named), preparing = example, cast(Preparing, further)
        prepared = prepare_fx(model, rules, inputs, example_kwargs=named, target=target, algorithms=chosen, **preparing)
    automatic = precision == "auto" and data is not None
    kept = _calibrate(prepared, data, num_batches=num_batches, keep=automatic, progress=progress)
    made = _convert(prepared, converting, engine, example, warn=not automatic)
    return assured(model, made, kept, budget=budget, may_change=qconfig_mapping is None, finer=effort != "fast")


@contextlib.contextmanager
def _lists_told(model: nn.Module, data: Iterable[object] | None) -> Iterator[None]:
    """Say of a batch that is an example and not captured, if it is, that a list may be meant as one argument."""
    try:
        yield
    except CaptureError as error:
        if data is not None:
            refuse_lists_as_one(model, peek(data)[0], error)
        raise


def _example(
    model: nn.Module,
    data: Iterable[object] | None,
    inputs: object,
    kwargs: Mapping[str, object] | None,
    further: Further,
) -> tuple[_Example, Iterable[object] | None]:
    """Return the example inputs as they are given, or the first batch of the data; and the data, with that batch.

    Batches that differ in which arguments they give ask for a form that takes all such calls.
    """
    if inputs is not None or kwargs is not None:
        return (inputs if inputs is not None else (), kwargs), data
    if data is None:
        raise ConfigError("quantize needs calibration data, or example_inputs for the modes that need none.")
    mixed = fullest_call(data, model)
    if mixed is not None:
        further.setdefault("sizes", "any" if further.get("method", "auto") == "auto" else "example")
        return (mixed[0], mixed[1] or None), data
    batch, data = peek(data)
    return as_example(batch, model), data


def _calibrate(
    prepared: nn.Module, data: Iterable[object] | None, *, num_batches: int | None, keep: bool, progress: bool
) -> list[object]:
    """Calibrate on the data, if there is any. With `keep`, also watch the inputs and keep the first batches."""
    kept = Kept(() if data is None else data)
    if data is not None:
        if keep:
            watch_products(prepared)
        calibrate(prepared, kept if keep else data, num_batches=num_batches, progress=progress)
    check_calibrated(prepared, "quantize")
    return kept.batches


def _target(target: Target | str | None, engine: Engine | Native | str | None) -> Target | str | None:
    """Return what a model is prepared for: what is asked for, or the target of an engine that has to be told of.

    That is one of the user's own, and one of other activations than the engines have that share what is observed.
    """
    check_engine(engine)
    if target is not None or engine is None or engine == AUTO:
        return target
    own = as_engine(engine).target()
    return own if isinstance(engine, Engine) or own.activation != x86().activation else None


def _convert(
    prepared: nn.Module,
    converting: ConvertCustomConfig,
    engine: Engine | Native | str | None,
    example: _Example,
    *,
    warn: bool,
) -> Made:
    """Convert for the engine, or for that which is fastest on the example inputs."""
    if engine == AUTO:
        converted, on = _convert_for_fastest(prepared, converting, example)
        warn_of_constant_inputs(decide(prepared, engine=on), stacklevel=3)
    else:
        on = as_engine(engine)
        prepared = adapt(prepared, engine=on)
        decided = decide(prepared, engine=on, runs=False)
        warn_of_constant_inputs(decided, stacklevel=3)
        if warn:
            warn_eaten(find_eaten(prepared, decided), stacklevel=3)
        converted = convert_fx(decided, converting, engine=on)

    def convert(decided: nn.Module, engine: Engine) -> nn.Module:
        return convert_fx(decided, converting, engine=engine)

    return Made(prepared=prepared, converted=converted, engine=on, convert=convert)


def _convert_for_fastest(
    prepared: nn.Module, converting: ConvertCustomConfig, example: _Example
) -> tuple[nn.Module, Engine]:
    args, kwargs = read_examples(*example)
    found = convert_on_engines(prepared, converting)
    converted = fastest(found, lambda made: made(*args, **kwargs))
    return converted, as_engine(next(name for name, made in found.items() if made is converted))


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
    check_arguments(save, path=path)
    target = Path(path)
    refuse_exported(target, ArchiveError)
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
    check_arguments(load, path=path)
    path = Path(path) / MODEL_FILE if os.path.isdir(path) else Path(path)  # Path.is_dir raises for long names
    model = read_archive(path, float_model)
    try:
        made = apply_engine(model, engine)
        await_first_call(made, path)  # those that "auto" measures are not the user's
        return made
    except ArchiveError:
        raise
    except Exception as error:  # of a kernel or a runtime that cannot take what the checks of the file let through
        name = engine if isinstance(engine, str) else as_engine(engine).name
        text = str(error) if isinstance(error, FxQuantError) else f"{type(error).__name__}: {error}"
        raise ArchiveError(f"{str(path)!r} cannot run on engine {name!r}. {text}") from error
