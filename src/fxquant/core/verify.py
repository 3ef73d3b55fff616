"""Invariants of each stage, checked after each pass. An error names the pass, the region and the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from fxquant.core import compat
from fxquant.core.encode import META_KEYS
from fxquant.core.graph import Region, regions
from fxquant.core.ops import OPS, OpTable, activation_nodes
from fxquant.core.paths import get_attr
from fxquant.core.plan import note_of
from fxquant.errors import VerifyError

Pass = Callable[[Region], Region]


def run_passes(
    model: nn.Module, passes: Iterable[tuple[str, Pass]], stage: str, only: Callable[[Region], bool] | None = None
) -> nn.Module:
    """Map passes over all regions of a model, check each result, and mark the regions with the stage reached.

    `only` tells which regions are meant: a model may hold some that went ahead of the others.
    """
    for path, region in [(path, region) for path, region in regions(model) if only is None or only(region)]:
        for name, apply in passes:
            apply(region)
            verify(region, pass_name=name, region_path=path)
        region._region.stage = stage
        verify(region, pass_name=stage, region_path=path)
    return model


def verify(region: Region, *, pass_name: str, region_path: str = "", ops: OpTable = OPS) -> None:
    """Raise VerifyError if the region breaks an invariant of its stage."""

    def fail(node: fx.Node | None, message: str) -> None:
        at = f", node {node.name!r}" if node is not None else ""
        raise VerifyError(f"after {pass_name!r}, region {region_path or '<root>'!r}{at}: {message}")

    try:
        region.graph.lint()
    except (RuntimeError, ValueError, AttributeError) as error:
        fail(None, f"the graph is malformed: {error}")
    converted = region._region.stage == "converted"
    for node in region.graph.nodes:
        _check_references(region, node, fail)
        _check_meta(node, fail)
        if converted:
            _check_converted(region, node, fail)
        elif (note := note_of(node)) is not None:
            _check_note(region, node, note.inputs, note.output, ops, fail)


def _check_references(region: Region, node: fx.Node, fail: Callable[[fx.Node, str], None]) -> None:
    if node.op == "get_attr":
        try:
            get_attr(region, str(node.target))
        except AttributeError:
            fail(node, f"reads {node.target!r}, which does not exist")
    if node.op == "call_module":
        try:
            region.get_submodule(str(node.target))
        except AttributeError:
            fail(node, f"calls module {node.target!r}, which does not exist")


def _check_meta(node: fx.Node, fail: Callable[[fx.Node, str], None]) -> None:
    for key in META_KEYS:
        if key in node.meta and _holds_live(node.meta[key]):
            fail(node, f"meta[{key!r}] holds a Node or a module; only plain values survive a copy")


def _holds_live(value: Any) -> bool:
    if isinstance(value, (fx.Node, nn.Module, Tensor)):
        return True
    return isinstance(value, (list, tuple)) and any(map(_holds_live, value))


def _check_note(
    region: Region,
    node: fx.Node,
    inputs: tuple[str | None, ...],
    output: str | None,
    ops: OpTable,
    fail: Callable[[fx.Node, str], None],
) -> None:
    known = region._region.quantizers or {}
    for name in (*inputs, output):
        if name is not None and name not in known:
            fail(node, f"its note names quantizer {name!r}, which has no spec")
    container = region._region.quantizer_path
    op = ops.of_node(node, region)
    if not container or op is None:
        return
    for operand, name in zip(activation_nodes(node, op), inputs, strict=False):
        several = isinstance(operand.meta.get("tensor"), tuple)
        if name is not None and not several and operand.target != f"{container}.{name}":
            fail(node, f"operand {operand.name!r} should come from quantizer {name!r}")
    if output is not None and not any(user.target == f"{container}.{output}" for user in node.users):
        fail(node, f"its output should be quantized by {output!r}")


def _check_converted(region: Region, node: fx.Node, fail: Callable[[fx.Node, str], None]) -> None:
    if node.target in (compat.QUANTIZE, compat.QUANTIZE_ROUNDING, compat.DEQUANTIZE):
        scale, zero_point = (_number(region, value) for value in node.args[1:3])
        if not isinstance(scale, float) or not isinstance(zero_point, int) or scale < 0:
            fail(node, f"scale {scale!r} and zero point {zero_point!r} should be one number each, the scale positive")
    if node.target in (compat.DEQUANTIZE_CHANNEL, compat.DEQUANTIZE_GROUP):
        weight = node.args[0]
        assert isinstance(weight, fx.Node)
        if weight.op == "get_attr" and get_attr(region, str(weight.target)).dtype not in _INTEGERS:
            fail(node, f"weight {weight.target!r} should be stored as integers")
    if node.op == "call_module" and type(region.get_submodule(str(node.target))).__name__ == "FakeQuant":
        fail(node, "a quantizer is left in a converted graph")


def _number(region: Region, value: Any) -> Any:
    """A plain number, or what a graph reads as one; an unknown scale is nan (numerics/grid.py)."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return value
    tensor = get_attr(region, str(value.target))
    return tensor.to("cpu").tolist() if isinstance(tensor, Tensor) and not tensor.is_meta else value


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32)
