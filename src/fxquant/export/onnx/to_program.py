"""Exported program -> ONNX program, by torch.onnx and translations of our own."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

Translations = Mapping[Callable[..., object], Callable[..., object]]


def to_program(program: torch.export.ExportedProgram, opset: int, table: Translations) -> torch.onnx.ONNXProgram:
    """`torch.onnx.export` with a table of translations; where torch lets us, its own table is built once per opset.

    It is built anew for each export otherwise, which takes half of the time of a small one.
    """
    registry = _onnx_registry(opset)
    if registry is None:
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, opset_version=opset, custom_translation_table=dict(table)
        )
        assert exported is not None
        return exported
    for target, function in table.items():
        registry.register_op(target, function, is_complex=False)
    core = importlib.import_module("torch.onnx._internal.exporter._core")
    found: torch.onnx.ONNXProgram = core.export(
        program, (), None, registry=registry, dynamic_shapes={}, verbose=False, opset_version=opset
    )
    return found


def _onnx_registry(opset: int) -> Any:
    """Return a copy of torch.onnx's translations for an opset, to add to; None where torch has them elsewhere."""
    try:
        core = importlib.import_module("torch.onnx._internal.exporter._core")
        wanted = ("registry", "dynamic_shapes", "verbose", "opset_version")
        if not set(wanted) <= set(inspect.signature(core.export).parameters):
            return None
        known = _torchlib(opset)
        registry = copy.copy(known)
        registry.functions = {target: list(found) for target, found in known.functions.items()}
        return registry if hasattr(registry, "register_op") else None
    except (ImportError, AttributeError, TypeError):
        return None


@functools.cache
def _torchlib(opset: int) -> Any:
    registration = importlib.import_module("torch.onnx._internal.exporter._registration")
    lowest = importlib.import_module("torch.onnx._internal.exporter._constants").TORCHLIB_OPSET
    return registration.ONNXRegistry.from_torchlib(opset_version=max(opset, lowest))
