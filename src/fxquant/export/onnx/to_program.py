"""Exported program -> ONNX program, by torch.onnx and translations of our own."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Translations = Mapping[Callable[..., object], Callable[..., object]]

_listing = threading.Lock()  # held while torch lists its ops by a function of ours


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
    with _ops_listed_once():
        found: torch.onnx.ONNXProgram = core.export(
            program, (), None, registry=registry, dynamic_shapes={}, verbose=False, opset_version=opset
        )
    return found


@contextlib.contextmanager
def _ops_listed_once() -> Iterator[None]:
    """Have torch list the ops of its dispatcher once: twice for each namespace, that is a fifth of a small export."""
    utils: Any = importlib.import_module("torch._export.utils")
    every = getattr(utils, "_materialize_cpp_cia_ops", None)
    if every is None or not _listing.acquire(blocking=False):
        yield  # torch has another way, or another thread is in here
        return
    utils._materialize_cpp_cia_ops = functools.cache(every)
    try:
        yield
    finally:
        utils._materialize_cpp_cia_ops = every
        _listing.release()


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
