"""Tensors whose channels can be scaled together: who makes them, who takes them, and why not.

    conv --> relu --> pool --> conv          y_c -> s_c y_c: rows c of the first weight times s_c, columns c of the
      \\--> relu --> add --> linear           second divided by s_c; all between lets a positive factor pass

A group is closed over adds: all that is summed has the same factors. It is of use if every maker is a weight or a layer
norm, and every taker a weight, all called once. What is concatenated stays apart: a weight that takes it has columns
for each of the groups.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from fxquant.graph.context import Context
from fxquant.graph.nodes import reads_size, tensor_info
from fxquant.graph.region import Region
from fxquant.graph.tensor_users import count_users, is_sole_user
from fxquant.ops.table import Layout, Op, activation_nodes, argument
from fxquant.passes.read_op import module_of, setting


@dataclass(kw_only=True, slots=True)
class ChannelGroup:
    """`tensors` have their channels along the axis that goes with them; `clips` cut off values above a bound.

    `takers` are weights, each with the tensor that it takes. Where that is a concatenation, the channels of the group
    begin at `starts` in it.
    """

    channels: int
    tensors: dict[fx.Node, int] = field(default_factory=dict)
    makers: list[fx.Node] = field(default_factory=list)
    takers: dict[fx.Node, fx.Node] = field(default_factory=dict)
    starts: dict[fx.Node, list[int]] = field(default_factory=dict)
    clips: dict[fx.Node, float] = field(default_factory=dict)
    between: list[str] = field(default_factory=list)  # the kinds of the ops inside
    refused: str = ""

    def starts_in(self, taker: fx.Node) -> list[int]:
        """Tell where the channels of the group begin among those that a weight takes."""
        return self.starts.get(taker, [0])

    @property
    def changed(self) -> set[str]:
        """The tensors that change with the factors, by name."""
        return {node.name for node in (*self.tensors, *(self.takers[taker] for taker in self.starts))}


def channel_groups(region: Region, context: Context) -> list[ChannelGroup]:
    """Return all groups with a taker, in the order of the graph.

    `refused` says why the channels of one stay as they are.
    """
    groups: dict[fx.Node, ChannelGroup] = {}
    joined: dict[fx.Node, list[tuple[fx.Node, int]]] = {}  # concatenations: their parts, and where these begin
    calls = Counter(str(node.target) for node in region.graph.nodes if node.op == "call_module")
    users = count_users(region)

    def alone(node: fx.Node) -> str:
        if calls[str(node.target)] > 1:
            return f"{node.target} is called {calls[str(node.target)]} times"
        if not is_sole_user(region.get_submodule(str(node.target)), users):
            return f"a parameter of {node.target} is read elsewhere, too"
        return ""

    for node in region.graph.nodes:
        op = context.ops.of_node(node, region)
        operands = [] if op is None else activation_nodes(node, op)
        made = _maker(region, node, op)
        taken = operands[0] if op is not None and operands and _is_weighted(region, node, op) else None
        passed = [] if op is None or taken is not None else _passed(region, node, op, operands, groups)
        if op is not None and passed:
            group = groups[passed[0]]
            for other in [groups[operand] for operand in passed if groups[operand] is not group]:
                _merge(groups, group, other)
            group.between.append(op.kind)
            _put(groups, group, node, group.tensors[passed[0]])
            clip = _clip(region, node, op)
            if clip is not None:
                group.clips[node] = clip
        if op is not None and op.layout is Layout.CAT and (parts := _parts(node, op, operands, groups, joined)):
            joined[node] = parts
            continue
        for source in node.all_input_nodes:
            if reads_size(node) or source in passed or _is_unread(node):
                continue
            for part, start in joined.get(source, [(source, None)]):
                if part not in groups:
                    continue
                group = groups[part]
                if taken is not None and source is taken and group.tensors[part] == _axis(op, source):
                    group.takers[node] = source
                    group.refused = group.refused or alone(node)
                    if start is not None:
                        group.starts.setdefault(node, []).append(start)
                else:
                    kind = "the output of the model" if node.op == "output" else op.kind if op else str(node.name)
                    group.refused = group.refused or f"{source.name} goes to {kind}, which cannot take a factor"
        if made is not None and not passed:
            group = ChannelGroup(channels=made[0], makers=[node], refused=alone(node))
            _put(groups, group, node, made[1])
    found = {id(group): group for group in groups.values() if group.takers}
    return [*found.values()]


def _is_unread(node: fx.Node) -> bool:
    return not node.users and node.op != "output" and not node.is_impure()


def _put(groups: dict[fx.Node, ChannelGroup], group: ChannelGroup, node: fx.Node, axis: int) -> None:
    groups[node] = group
    group.tensors[node] = axis


def _merge(groups: dict[fx.Node, ChannelGroup], group: ChannelGroup, other: ChannelGroup) -> None:
    for node, axis in other.tensors.items():
        _put(groups, group, node, axis)
    group.makers += other.makers
    group.takers.update(other.takers)
    for taker, starts in other.starts.items():
        group.starts.setdefault(taker, []).extend(starts)
    group.between += other.between
    group.clips.update(other.clips)
    group.refused = group.refused or other.refused


def _is_weighted(region: Region, node: fx.Node, op: Op) -> bool:
    if node.op != "call_module" or op.channels_at is None or op.channel_axis != 0:
        return False
    module = region.get_submodule(str(node.target))
    return type(module) in op.modules and isinstance(module.weight, nn.Parameter)


def _maker(region: Region, node: fx.Node, op: Op | None) -> tuple[int, int] | None:
    """(channels, axis) of what a weight or an affine layer norm makes."""
    info = tensor_info(node)
    if op is None or info is None or not info.shape or node.op != "call_module":  # () stands for any shape, too
        return None
    if _is_weighted(region, node, op):
        weight = region.get_submodule(str(node.target)).weight
        assert isinstance(weight, Tensor) and op.channels_at is not None
        if op.channels_at == 1 and len(info.shape) != weight.dim():
            return None  # a picture without a batch
        return int(weight.shape[0]), op.channels_at % len(info.shape)
    module = region.get_submodule(str(node.target))
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1 and module.elementwise_affine:
        return int(module.normalized_shape[0]), len(info.shape) - 1
    return None


def _axis(op: Op | None, source: fx.Node) -> int | None:
    info = tensor_info(source)
    if op is None or op.channels_at is None or info is None or not info.shape:
        return None
    return op.channels_at % len(info.shape)


def _parts(
    node: fx.Node,
    op: Op,
    operands: list[fx.Node],
    groups: dict[fx.Node, ChannelGroup],
    joined: dict[fx.Node, list[tuple[fx.Node, int]]],
) -> list[tuple[fx.Node, int]]:
    """Return the tensors of groups that a node puts one after the other along their channels, and where each begins."""
    info, dim = tensor_info(node), argument(node, op, 1)
    shapes: list[tuple[int, ...]] = [getattr(tensor_info(operand), "shape", ()) for operand in operands]
    if info is None or not isinstance(dim, int) or any(len(shape) != len(info.shape) for shape in shapes):
        return []
    axis, start = dim % len(info.shape), 0
    found: list[tuple[fx.Node, int]] = []
    for operand, shape in zip(operands, shapes, strict=True):
        if operand in groups and groups[operand].tensors[operand] != axis:
            return []
        found += [(part, start + inner) for part, inner in joined.get(operand, [(operand, 0)]) if part in groups]
        start += shape[axis]
    return found if start == info.shape[axis] else []


def _passed(
    region: Region, node: fx.Node, op: Op, operands: list[fx.Node], groups: dict[fx.Node, ChannelGroup]
) -> list[fx.Node]:
    """Return the operands of an op whose factors are those of what it makes.

    That is one operand of a product, and both of a sum.
    """
    info = tensor_info(node)
    shapes: list[tuple[int, ...]] = [getattr(tensor_info(operand), "shape", ()) for operand in operands]
    if info is None:
        return []
    if op.multiplies:
        whole = [each for each, shape in zip(operands, shapes, strict=True) if shape == info.shape and each in groups]
        return [each for each in whole if not groups[each].refused and operands.count(each) == 1][:1]
    if not operands or any(operand not in groups for operand in operands):
        return []
    group = groups[operands[0]]
    axis = group.tensors[operands[0]]
    if op.adds:
        plain = len(operands) == 2 and argument(node, op, 2) is None and "alpha" not in node.kwargs
        same = all(groups[operand].tensors[operand] == axis for operand in operands)
        return operands if plain and same and shapes == [info.shape] * 2 else []
    if len(operands) != 1:
        return []
    if (op.keeps_factor and _keeps_factor(region, node, op, axis)) or op.noop:
        return operands if len(info.shape) == len(shapes[0]) and info.shape[axis] == group.channels else []
    if op.clips:
        return operands if _clip(region, node, op) is not None else []
    # (n, c, 1, 1) -> (n, c), and means over what comes after the channels
    size = math.prod(shapes[0])
    flat = op.moves and size == math.prod(shapes[0][:2]) == math.prod(info.shape) and shapes[0][0] != shapes[0][1]
    if (flat or op.averages) and axis == 1 and len(info.shape) > 1 and info.shape[:2] == shapes[0][:2]:
        return operands
    return []


def _keeps_factor(region: Region, node: fx.Node, op: Op, axis: int) -> bool:
    """Tell whether a factor passes through an op of a kind that lets it, unless it pads with numbers, or channels."""
    module, info = module_of(region, node), tensor_info(node)
    if op.unless is not None and op.unless(node, module) is not None:
        return False
    if "pad" not in op.params:
        return True
    pad = setting(node, module, op.params.index("pad"), "pad" if module is None else "padding")
    return isinstance(pad, (tuple, list)) and info is not None and len(pad) <= 2 * (len(info.shape) - 1 - axis)


def _clip(region: Region, node: fx.Node, op: Op) -> float | None:
    """Return the upper bound of a clip at zero below, infinite for none; None for any other."""
    if not op.clips:
        return None
    probe = torch.tensor([-3.4e38, 3.4e38])
    try:
        if node.op == "call_module":
            low, high = region.get_submodule(str(node.target))(probe).tolist()
        else:
            args = (probe, *node.args[1:])
            target = getattr(probe, str(node.target)) if node.op == "call_method" else node.target
            made = target(*args[1:], **node.kwargs) if node.op == "call_method" else target(*args, **node.kwargs)  # type: ignore[operator]
            low, high = made.tolist()
    except (TypeError, RuntimeError):  # bounds that the graph computes
        return None
    return (torch.inf if high > 3e38 else float(high)) if low == 0 else None
