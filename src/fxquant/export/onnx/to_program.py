"""Exported program -> ONNX program, by torch.onnx and translations of our own."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

Translations = Mapping[Callable[..., object], Callable[..., object]]


class _Registry(Protocol):
    """What torch.onnx translates by."""

    functions: dict[object, list[Any]]


# held while torch calls a function of ours in place of its own
_listing, _decomposing = threading.Lock(), threading.Lock()


def to_program(program: ExportedProgram, opset: int, table: Translations) -> torch.onnx.ONNXProgram:
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
    _write_means(program)
    core = importlib.import_module("torch.onnx._internal.exporter._core")
    with _ops_listed_once(), _decomposed_if_needed():
        found: torch.onnx.ONNXProgram = core.export(
            program, (), None, registry=registry, dynamic_shapes={}, verbose=False, opset_version=opset
        )
    return found


def _ops_listed_once() -> contextlib.AbstractContextManager[None]:
    """Have torch list the ops of its dispatcher once: twice for each namespace, that is a fifth of a small export."""
    return _replaced("torch._export.utils", "_materialize_cpp_cia_ops", functools.cache, _listing)


def _decomposed_if_needed() -> contextlib.AbstractContextManager[None]:
    """Have torch take a program as it is where each of its ops has a translation.

    torch traces every program once more to decompose the others, which is half of an export.
    """

    def when_needed(decompose: Callable[..., ExportedProgram]) -> Callable[..., ExportedProgram]:
        def take(program: ExportedProgram, registry: _Registry) -> ExportedProgram:
            return program if _is_translated(program, registry) else decompose(program, registry)

        return take

    module = "torch.onnx._internal.exporter._fx_passes"
    return _replaced(module, "decompose_with_registry", when_needed, _decomposing)


def _write_means(program: ExportedProgram) -> None:
    """Write global average pools, in place, as torch decomposes them: many models have nothing else to decompose."""
    aten = torch.ops.aten
    for node in program.graph.find_nodes(op="call_function", target=aten.adaptive_avg_pool2d.default):
        if list(node.args[1]) == [1, 1]:
            node.target, node.args = aten.mean.dim, (node.args[0], [-1, -2], True)


def _is_translated(program: ExportedProgram, registry: _Registry) -> bool:
    """Tell whether each op has a translation, and none writes into a tensor or calls a graph inside of this one."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    if any(isinstance(module, torch.fx.GraphModule) for module in program.graph_module.children()):
        return False
    known = {found[0].fx_target for found in registry.functions.values()}
    return all(node.target in known and not _writes(node.target) for node in calls)


def _writes(target: object) -> bool:
    return bool(getattr(getattr(target, "_schema", None), "is_mutable", False))


@contextlib.contextmanager
def _replaced(module: str, name: str, by: Callable[..., object], lock: threading.Lock) -> Iterator[None]:
    """Have torch call `by(function)` for a function of its own; as it is where torch has none, or in another thread."""
    place: Any = importlib.import_module(module)
    own = getattr(place, name, None)
    if own is None or not lock.acquire(blocking=False):
        yield
        return
    setattr(place, name, by(own))
    try:
        yield
    finally:
        setattr(place, name, own)
        lock.release()


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
