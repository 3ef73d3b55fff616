"""Move scales by a hair, to where no integer of a graph depends on the order in which a runtime multiplies them.

    node  conv (x, w) -> y       s_w      s_x s_w / s_y  = a / b, channel by channel
          add (x, z) -> y        s_x s_y s_z             = C / p with odd p, all that adds connect
          x z, mean of n of x    s_y      s_x s_z / s_y  = a / b

What that is for: numerics/ties.py. Activations go first, then weights, whose integers stay as they are. A sum with
another function before its rounding has ties wherever that function puts them, and is left alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from fxquant.config.spec import Spec
from fxquant.graph.context import Context
from fxquant.graph.nodes import tensor_info
from fxquant.graph.notes import note_of
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region, preparation_of
from fxquant.graph.tensor_users import count_users, is_sole_user
from fxquant.numerics.affine import dequantize, quantize
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.ties import LEAST, MOST, clear_ratios, clear_together
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant
from fxquant.numerics.weights.weight_range import find_weight_qparams
from fxquant.ops.table import Op, OpTable, activation_nodes
from fxquant.passes.convert_bias import input_scale
from fxquant.passes.find_quantizer import quantizer_of


@dataclass(frozen=True, slots=True)
class _Term:
    """The product of what `factors` quantize, over `count`; times a weight, where `node` is a weighted op."""

    factors: tuple[FakeQuant, ...]
    count: int = 1
    node: fx.Node | None = None

    @property
    def is_plain(self) -> bool:
        return len(self.factors) == 1 and self.count == 1 and self.node is None


@dataclass(frozen=True, slots=True)
class _Sum:
    """Terms that are rounded onto one grid together."""

    output: FakeQuant
    terms: tuple[_Term, ...]

    @property
    def plain(self) -> list[FakeQuant]:
        return [term.factors[0] for term in self.terms if term.is_plain and term.factors[0] is not self.output]


@dataclass
class _Set:
    """What is decided: odd steps p of scales that adds connect, and all quantizers that do not move any more."""

    steps: dict[FakeQuant, int] = field(default_factory=dict)
    done: set[FakeQuant] = field(default_factory=set)


def clear_ties(region: Region, context: Context) -> None:
    """Move float scales by a hair, to where no sum of integers is near a tie, where the target asks for it."""
    preparation = preparation_of(region)
    if not preparation.clear_ties or context.uncalibrated or preparation.observed is not None:
        return  # what was trained keeps its scales
    preparation.clear_ties = False
    sums = list(_sums(region, context.ops))
    settled = _Set()
    for group in _connected(sums):
        _settle(group, sums, settled)
    for each in sums:
        _clear_product(each, settled)
    users, calls = count_users(region), Counter(str(node.target) for node in region.graph.nodes)
    for each in sums:
        weighted = [term for term in each.terms if term.node is not None]
        if len(weighted) == 1 and len(weighted) + len(each.plain) == len(each.terms):
            node = weighted[0].node
            assert node is not None
            if calls[str(node.target)] == 1 and is_sole_user(_op_module(region, node), users):
                _clear_weight(region, context.ops, node, each, settled)


def _sums(region: Region, ops: OpTable) -> Iterator[_Sum]:
    """Yield what is rounded, in the order of the graph, where all of it is on grids with one float scale."""
    for node in region.graph.nodes:
        output = _fixed(region, node)
        source = node.args[0] if output is not None else None
        if output is not None and isinstance(source, fx.Node):
            terms = _terms(region, ops, source)
            if terms and (not output.scale.dim() or (len(terms) == 1 and terms[0].node is not None)):
                yield _Sum(output, terms)


def _fixed(region: Region, node: fx.Node) -> FakeQuant | None:
    """Return the quantizer that a node calls, if it has a float scale, or one for each channel."""
    quantizer = quantizer_of(region, node)
    if quantizer is None or quantizer.state != "frozen" or quantizer.spec.dynamic:
        return None
    return quantizer if quantizer.spec.scale == "float" else None


def _grid(region: Region, node: fx.Node) -> FakeQuant | None:
    """Return it if it has one scale."""
    quantizer = _fixed(region, node)
    return None if quantizer is None or quantizer.scale.dim() else quantizer


def _terms(region: Region, ops: OpTable, node: fx.Node) -> tuple[_Term, ...]:
    """Return the terms of a tensor before it is rounded; none where it is not a sum of integers."""
    grid, op = _grid(region, node), ops.of_node(node, region)
    if grid is not None:
        return (_Term((grid,)),)
    if op is None:
        return ()
    operands = activation_nodes(node, op)
    if op.clips or op.picks or (op.moves and len(operands) == 1):
        return _terms(region, ops, operands[0])
    if op.adds and len(operands) == 2 and len(node.args) == 2 and not node.kwargs:
        parts = [_terms(region, ops, operand) for operand in operands]
        return (*parts[0], *parts[1]) if all(parts) else ()
    return _product(region, node, op, operands)


def _product(region: Region, node: fx.Node, op: Op, operands: list[fx.Node]) -> tuple[_Term, ...]:
    note, grids = note_of(node), [_grid(region, operand) for operand in operands]
    if op.has_weight:
        if note is None or note.weight is None or node.op != "call_module" or not operands:
            return ()
        quantizer = _fixed(region, operands[0])  # of a depthwise convolution, it may have a scale per channel
        return () if quantizer is None else (_Term((quantizer,), node=node),)
    found = tuple(grid for grid in grids if grid is not None)
    if len(found) != len(operands) or not found:
        return ()
    if op.averages or op.window is not None:
        count = _count(region, node, op)
        return (_Term(found, count),) if count else ()
    is_product = (op.multiplies or op.is_product) and len(found) == 2
    return (_Term(found),) if is_product else ()


def _count(region: Region, node: fx.Node, op: Op) -> int:
    """Return how many values a mean over all of a picture, or over axes, is of; 0 for other windows."""
    before, after = tensor_info(activation_nodes(node, op)[0]), tensor_info(node)
    if before is None or after is None or op.window == "given":
        return 0
    whole, left = math.prod(before.shape), math.prod(after.shape)
    if op.window == "parts" and math.prod(after.shape[2:]) != 1:
        return 0
    return whole // left if left else 0


def _connected(sums: list[_Sum]) -> list[list[FakeQuant]]:
    """Return the quantizers that sums of plain tensors connect, group by group."""
    groups: dict[FakeQuant, list[FakeQuant]] = {}
    for each in sums:
        if each.plain:
            joined = list(dict.fromkeys(one for grid in (each.output, *each.plain) for one in groups.get(grid, [grid])))
            groups.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in groups.values()}.values())


def _settle(group: list[FakeQuant], sums: list[_Sum], settled: _Set) -> None:
    """Give connected quantizers scales C / p."""
    place = {quantizer: at for at, quantizer in enumerate(group)}
    together = [[place[grid] for grid in each.plain] for each in sums if each.plain and each.output in place]
    scales = [float(quantizer.scale) for quantizer in group]
    found = clear_together(scales, [not _moves(quantizer.spec) for quantizer in group], together)
    settled.done.update(group)
    if found is None:
        return
    common, steps = found
    for quantizer, p in zip(group, steps, strict=True):
        if _moves(quantizer.spec):
            quantizer.scale = torch.full_like(quantizer.scale, common / p)
        settled.steps[quantizer] = p


def _moves(spec: Spec) -> bool:
    """Tell whether a range was seen: others are known, or the user's."""
    return spec.observer not in ("fixed", "custom") and spec.learn is None


def _clear_product(each: _Sum, settled: _Set) -> None:
    """Move the output of a product or a mean, or, where that has its place, the one factor that may still move."""
    if len(each.terms) != 1 or each.terms[0].node is not None or each.terms[0].is_plain:
        return
    term, output = each.terms[0], each.output
    inputs = 1.0 / term.count
    for factor in term.factors:
        inputs *= float(factor.scale)
    ratio = float(clear_ratios(torch.tensor(inputs / float(output.scale))))
    may_move = [factor for factor in term.factors if factor not in settled.done and _moves(factor.spec)]
    if output not in settled.done and output not in term.factors and _moves(output.spec):
        output.scale = torch.full_like(output.scale, inputs / ratio)
    elif len(may_move) == 1 and may_move[0] is not output:
        other = may_move[0]
        other.scale = torch.full_like(other.scale, float(other.scale) * ratio * float(output.scale) / inputs)
    settled.done.update((output, *term.factors))


def _op_module(region: Region, node: fx.Node) -> nn.Module:
    return region.get_submodule(str(node.target))


@torch.no_grad()
def _clear_weight(region: Region, ops: OpTable, node: fx.Node, each: _Sum, settled: _Set) -> None:
    """Move the scales of a weight, and keep its integers."""
    module, note, op = _op_module(region, node), note_of(node), ops.of_node(node, region)
    weight, bias = module.weight, getattr(module, "bias", None)
    assert note is not None and note.weight is not None and op is not None and isinstance(weight, Tensor)
    x_scale = input_scale(region, node, op, waiting=False)
    spec = note.weight
    if x_scale is None or spec.granularity == "per_group" or spec.scale != "float" or spec.factory is not None:
        return
    if bias is not None and note.bias != "int32":
        return  # such a bias lies anywhere between two steps
    steps = [settled.steps[grid] for grid in each.plain if grid in settled.steps]
    if len(steps) != len(each.plain):
        return
    block = type(module) is QatBlock
    scale, zero_point = (
        module.weight_fq.compute_qparams(weight)  # type: ignore[union-attr,operator]
        if block
        else find_weight_qparams(weight, spec, f"{node.target}.weight")
    )
    per_step = x_scale.double() / each.output.scale.double()
    if per_step.dim() and per_step.shape != scale.shape:
        return
    ratios = scale.double() * per_step
    cleared = clear_ratios(ratios, math.lcm(*steps))
    near = (ratios > LEAST) & ((cleared / ratios - 1).abs() <= MOST)
    moved = (torch.where(near, cleared, ratios) / per_step).to(scale)
    integers = quantize(weight.detach().float(), scale, zero_point, spec)
    values = nn.Parameter(dequantize(integers, moved, zero_point, spec).to(weight.dtype), weight.requires_grad)
    module.weight = values
    grid = WeightFakeQuant(spec, f"{node.target}.weight", weight.shape)
    grid.fix(moved, zero_point)
    if block:
        module.weight_fq = grid
    else:
        set_submodule(region, str(node.target), QatBlock(module, grid, None, note.bias))
