"""One call from a float model to an int8 one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fxquant.arguments import check_calibrated, either
from fxquant.capture import Method, Sizes
from fxquant.capture.as_plain import as_plain
from fxquant.capture.compare import evaluating
from fxquant.core.custom_config import ConvertCustomConfig, PrepareCustomConfig, as_convert_config
from fxquant.core.qconfig_mapping import QConfigMapping
from fxquant.core.target import Target
from fxquant.engines.choose import Engine, apply_engine, check_engine, fastest
from fxquant.errors import ArchiveError, ConfigError, FxQuantError
from fxquant.export.archive import read_archive, write_archive
from fxquant.flows.calibrate import as_example, calibrate, peek
from fxquant.quantize_fx import convert_fx, convert_on_engines, prepare_fx
from fxquant.targets import by_name
from fxquant.targets.defaults import Mode, default_dynamic_qconfig, weight_only_qconfig


def quantize(
    model: nn.Module,
    calibration_data: Iterable[Any] | None = None,
    *,
    mode: Mode = "static",
    qconfig_mapping: Any = None,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    concrete_args: Mapping[str, Any] | None = None,
    target: Target | str | None = None,
    method: Method = "auto",
    sizes: Sizes = "example",
    num_batches: int | None = None,
    strict: bool = True,
    engine: Engine = "onednn",
    prepare_custom_config: PrepareCustomConfig | Mapping[str, Any] | None = None,
    convert_custom_config: ConvertCustomConfig | Mapping[str, Any] | None = None,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    convert_custom_config_dict: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Quantize a model in one call: prepare, calibrate, convert.

    "static" needs calibration data: an iterable of batches (see `calibrate`). "dynamic" finds activation ranges at run
    time and "weight_only" stores int8 weights; both need only `example_inputs`, or a batch of data to take them from.

    `engine="auto"` converts the model for each engine that is installed, from one calibration, and keeps the one that
    is fastest on the example inputs.
    """
    model = as_plain(model, "quantize", training=False)
    data = calibration_data
    if example_inputs is None and example_kwargs is None:
        if data is None:
            raise ConfigError("quantize needs calibration data, or example_inputs for the modes that need none.")
        batch, data = peek(data)
        example_inputs, example_kwargs = as_example(batch, model)
    check_engine(engine)
    converting = as_convert_config(either(convert_custom_config, convert_custom_config_dict, "convert_custom_config"))
    with evaluating(model):
        prepared = prepare_fx(
            model,
            _mapping(mode, target) if qconfig_mapping is None else qconfig_mapping,
            example_inputs if example_inputs is not None else (),
            prepare_custom_config,
            prepare_custom_config_dict=prepare_custom_config_dict,
            example_kwargs=example_kwargs,
            target=target,
            method=method,
            sizes=sizes,
            strict=strict,
            concrete_args=concrete_args,
        )
    if data is not None and mode == "static":
        calibrate(prepared, data, num_batches=num_batches)
    check_calibrated(prepared, "quantize")
    if engine != "auto":
        return convert_fx(prepared, converting, engine=engine)
    if isinstance(example_inputs, Mapping):
        example_inputs, example_kwargs = (), example_inputs
    example = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs or ())
    found = convert_on_engines(prepared, converting)
    return fastest(found, lambda made: made(*example, **(example_kwargs or {})))


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
    """
    target = Path(path)
    write_archive(model, target)
    return target


def load(path: str | Path, float_model: nn.Module | None = None, *, engine: Engine = "onednn") -> nn.Module:
    """Read a model that `save` wrote, and lower it for this machine. Nothing from the file is run as code.

    A model of one graph needs no class. `float_model` gives what a file cannot hold: Python code around the regions,
    modules of the user's own, wrapped functions. It has to have the structure of the model that was quantized; its
    weights do not matter, and it is not changed.
    """
    check_engine(engine)
    model = read_archive(Path(path), float_model)
    try:
        return apply_engine(model, engine)
    except ArchiveError:
        raise
    except Exception as error:  # of a kernel or a runtime that cannot take what the checks of the file let through
        text = str(error) if isinstance(error, FxQuantError) else f"{type(error).__name__}: {error}"
        raise ArchiveError(f"{str(path)!r} cannot run on engine {engine!r}. {text}") from error
