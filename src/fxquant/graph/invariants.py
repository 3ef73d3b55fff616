"""Invariants of each stage, checked after each pass. An error names the pass, the region and the node."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from fxquant.config.rules import Choice
from fxquant.errors import VerifyError
from fxquant.graph import torch_compat
from fxquant.graph.encode import META_KEYS
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import Decision, Note, note_of
from fxquant.graph.paths import find_module, get_attr
from fxquant.graph.quantizer import calls_quantizer
from fxquant.graph.region import Region, preparation_of, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.ops.table import OPS, OpTable, activation_nodes

Known = dict[int, object]  # by id; held, so that no id is given out again


def verify(
    region: Region, *, pass_name: str, region_path: str = "", ops: OpTable = OPS, plain: Known | None = None
) -> None:
    """Raise VerifyError if the region breaks an invariant of its stage.

    `plain` takes the values of `node.meta` that were looked at, which the next call need not look at again.
    """

    def fail(node: fx.Node | None, message: str) -> None:
        at = f", node {node.name!r}" if node is not None else ""
        raise VerifyError(f"after {pass_name!r}, region {region_path or '<root>'!r}{at}: {message}")

    _lint(region.graph, fail)
    converted = stage_of(region) is Stage.CONVERTED
    plain = {} if plain is None else plain
    for node in region.graph.nodes:
        _check_references(region, node, fail)
        _check_meta(node, plain, fail)
        if converted:
            _check_converted(region, node, fail)
        elif (note := note_of(node)) is not None:
            _check_note(region, node, note.inputs, note.output, ops, fail)


def _lint(graph: fx.Graph, fail: Callable[[fx.Node | None, str], None]) -> None:
    """fx's own checks but for those of targets, which `_check_references` makes, by a faster way."""
    owner, graph.owning_module = graph.owning_module, None
    try:
        graph.lint()
    except (RuntimeError, ValueError, AttributeError) as error:
        fail(None, f"the graph is malformed: {error}")
    finally:
        graph.owning_module = owner


def _check_references(region: Region, node: fx.Node, fail: Callable[[fx.Node, str], None]) -> None:
    if node.op == "get_attr":
        try:
            get_attr(region, str(node.target))
        except AttributeError:
            fail(node, f"reads {node.target!r}, which does not exist")
    if node.op == "call_module" and find_module(region, str(node.target)) is None:
        fail(node, f"calls module {node.target!r}, which does not exist")
    if node.op == "call_function" and not callable(node.target):
        fail(node, f"calls {node.target!r}, which is no function")


def _check_meta(node: fx.Node, plain: Known, fail: Callable[[fx.Node, str], None]) -> None:
    for key, value in node.meta.items():
        if id(value) in plain or key not in META_KEYS:
            continue
        if _holds_live(value):
            fail(node, f"meta[{key!r}] holds a Node or a module; only plain values survive a copy")
        plain[id(value)] = value


def _holds_live(value: object) -> bool:
    if type(value) in _PLAIN:  # most are, and this runs for every node after every pass
        return False
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
    known = preparation_of(region).quantizers or {}
    for name in (*inputs, output):
        if name is not None and name not in known:
            fail(node, f"its note names quantizer {name!r}, which has no spec")
    container = preparation_of(region).quantizer_path
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
    if node.target in (torch_compat.QUANTIZE, torch_compat.QUANTIZE_ROUNDING, torch_compat.DEQUANTIZE):
        scale, zero_point = (_number(region, value) for value in node.args[1:3])
        if not isinstance(scale, float) or not isinstance(zero_point, int) or scale < 0:
            fail(node, f"scale {scale!r} and zero point {zero_point!r} should be one number each, the scale positive")
    if node.target in (torch_compat.DEQUANTIZE_CHANNEL, torch_compat.DEQUANTIZE_GROUP):
        weight = node.args[0]
        assert isinstance(weight, fx.Node)
        if weight.op == "get_attr" and get_attr(region, str(weight.target)).dtype not in _INTEGERS:
            fail(node, f"weight {weight.target!r} should be stored as integers")
    if calls_quantizer(region, node):
        fail(node, "a quantizer is left in a converted graph")


def _number(region: Region, value: object) -> object:
    """Return a plain number, or what a graph reads as one; an unknown scale is nan (numerics/grid.py)."""
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return value
    tensor = get_attr(region, str(value.target))
    return tensor.to("cpu").tolist() if isinstance(tensor, Tensor) and not tensor.is_meta else value


_PLAIN = frozenset((str, bool, int, type(None), TensorInfo, Choice, Note, Decision))
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32)
