"""From a prepared model to its QDQ form: decide, CONVERT, CONNECT. What runs it is an engine's business."""

from __future__ import annotations

import torch
from torch import nn

from fxquant.arguments import is_calibrated
from fxquant.capture.canonical.bake import bake_regions
from fxquant.config.custom_config import ConvertCustomConfig
from fxquant.engines.choose import on_engines
from fxquant.engines.engine import Engine
from fxquant.engines.table import available_engines
from fxquant.flows.constant_inputs import warn_of_constant_inputs
from fxquant.flows.decide import decide, is_open, leaves_target_open
from fxquant.flows.eaten import find_eaten, warn_eaten
from fxquant.flows.pipelines import CONNECT, CONVERT
from fxquant.graph.context import Context
from fxquant.graph.own import copy_model
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.run_passes import run_passes
from fxquant.passes.custom_modules import quantize_custom, take_leaves


def convert_model(prepared: nn.Module, custom: ConvertCustomConfig, engine: Engine, *, tell: bool = False) -> nn.Module:
    """Return the QDQ form, decided for an engine where that is open. Without calibration it waits for its state_dict.

    With `tell`, what is wrong with the ranges that are decided here is a warning; who decides before tells it himself.
    Its tensors are plain ones, also where this is called in inference mode: inference tensors count no writes.
    """
    uncalibrated = not is_calibrated(prepared, "convert_fx")
    with torch.inference_mode(False):
        copied = copy_model(prepared).eval()
        bake_regions(copied)
        take_leaves(copied, custom.observed_to_quantized_mapping)
        decided = decide(copied, engine=engine, in_place=True, runs=False)
        if tell and any(is_open(region) for _, region in regions(prepared)):
            warn_of_constant_inputs(decided, stacklevel=3)
            warn_eaten(find_eaten(prepared, decided), stacklevel=3)
        converted = quantize_custom(decided, custom.observed_to_quantized_mapping)
        fresh = {id(region) for _, region in regions(converted) if stage_of(region) is Stage.PREPARED}
        context = Context(uncalibrated=uncalibrated)
        for passes in (CONVERT, CONNECT):
            run_passes(converted, passes, context, only=lambda region: id(region) in fresh, runs=False)
    return converted


def convert_on_engines(prepared: nn.Module, custom: ConvertCustomConfig) -> dict[str, nn.Module]:
    """Return a calibrated model on each engine that is there and takes it, in the form that the engine asks for."""
    groups: dict[str | None, list[Engine]] = {}
    for engine in available_engines():
        groups.setdefault(engine.target().name if leaves_target_open(prepared) else None, []).append(engine)
    found: dict[str, nn.Module] = {}
    for engines in groups.values():
        found.update(on_engines(convert_model(prepared, custom, engines[0]), engines))
    return found
