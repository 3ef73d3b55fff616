"""The float model with the channel factors of the quantized one, beside which its tensors and weights can be compared.

Equalization and smoothing multiply channels in one layer and divide them in the next, or shift them down and take
that back there: the same function with other tensors between, which is no error. The factors are read off the quantized
weights,

    s_c = <q_c, w_c> / <w_c, w_c>      q: rows of the quantized weights that make channel c, w: those of the float ones

and count where the weights that take the channels bear them out: divided by them, those come nearer to the quantized.
Shifts are read off the biases, and have to be borne out by those behind them likewise. Clips and pads are those of the
quantized graph, where they went along.
A product that smoothing put behind a layer norm has its factors in the graph.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fxquant.algorithms.channel_groups import ChannelGroup, channel_groups
from fxquant.algorithms.scale_group import absorb, divided, put, scale_group
from fxquant.graph import torch_compat
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.context import Context
from fxquant.graph.nodes import only_user
from fxquant.graph.paths import find_module, free_path, join_path
from fxquant.graph.region import Region, regions
from fxquant.graph.run_passes import run_passes
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.ops.table import OPS
from fxquant.passes.fold_bn import fold_bn
from fxquant.passes.read_op import operand_of

_BORNE_OUT = 0.8  # of the squared distance to what is behind: what factors and shifts have to leave less than
_LEAST = 0.1  # of the largest shift; what is less makes up for rounding


@torch.no_grad()
def rescaled(twin: nn.Module, reference: nn.Module) -> nn.Module:
    """Return the float regions scaled as the quantized ones are: a copy, or `twin` itself where nothing is scaled."""
    folded, made = clone_tree(twin), clone_tree(twin)
    run_passes(folded, (fold_bn,), Context())
    copies, converted, changed = dict(regions(made)), dict(regions(reference)), False
    for path, region in regions(folded):
        groups = [group for group in channel_groups(region, Context()) if not group.refused]
        for group in groups:
            factors = _factors(region, path, group, reference)
            if factors is not None and _scale(copies[path], region, group, factors):
                scale_group(region, group, factors)
                changed = True
        for group in groups:
            moved = _moved(copies[path], group, converted.get(path))
            lows = [float(node.args[1]) for node in moved.values() if node.target is F.hardtanh]  # type: ignore[arg-type]
            centred = torch.full((group.channels,), -min(lows)) if lows and min(lows) < 0 else None
            shift = _shift(region, path, group, reference) if centred is None else centred
            if shift is not None and _move(copies[path], region, group, shift):
                absorb(region, group.makers[0], [*group.takers], shift)
                changed = True
            for node, other in moved.items():
                operand = operand_of(node)
                node.op, node.target = other.op, other.target
                node.args, node.kwargs = (operand, *other.args[1:]), {}
            copies[path].recompile()
    for path, region in converted.items():
        for node in region.graph.nodes:
            if path in copies and (factors := _product(region, node)) is not None:
                changed |= _multiply(copies[path], region, node, factors)
    return made if changed else twin


def _factors(region: Region, path: str, group: ChannelGroup, reference: nn.Module) -> Tensor | None:
    """Return by what the quantized weights scale the channels of a group; None for nothing."""
    product, square = torch.zeros(group.channels), torch.zeros(group.channels)
    for maker in group.makers:
        pairs = [_both(region, path, maker, reference, name) for name in ("weight", "bias")]
        norm = len(pairs[0][0].shape) == 1 if pairs[0] is not None else False
        if pairs[0] is None:
            return None
        for pair in pairs if norm else pairs[:1]:  # biases of other makers may make up for rounding
            if pair is not None:
                wanted, found = (each.flatten(1) if each.dim() > 1 else each[:, None] for each in pair)
                product += (wanted * found).sum(1)
                square += wanted.square().sum(1)
    factors = product / square
    factors = torch.where((square > 0) & (factors > 0), factors, torch.ones_like(factors))
    before = after = 0.0
    for taker in group.takers:
        pair = _both(region, path, taker, reference, "weight")
        if pair is None:
            return None
        before += float((pair[1] - pair[0]).square().sum())
        after += float((pair[1] - divided(region, group, taker, factors).cpu().float()).square().sum())
    return factors if after < _BORNE_OUT * before else None


def _moved(copy: Region, group: ChannelGroup, converted: Region | None) -> dict[fx.Node, fx.Node]:
    """Return the clips and pads of a group in the float model that are others in the quantized graph, with these."""
    theirs = {} if converted is None else {node.name: node for node in converted.graph.nodes}
    names, found = {node.name for node in group.tensors}, {}
    for node in copy.graph.nodes:
        other = theirs.get(node.name)
        if node.name not in names or other is None or other.target not in (F.hardtanh, F.pad):
            continue
        if (node.target, node.args[1:]) != (other.target, other.args[1:]):
            found[node] = other
    return found


def _shift(region: Region, path: str, group: ChannelGroup, reference: nn.Module) -> Tensor | None:
    """Return by what the channels of a group were shifted down before a relu; None for nothing."""
    pairs = [_both(region, path, node, reference, "bias") for node in (group.makers[0], *group.takers)]
    if len(group.makers) > 1 or group.starts or not {"relu", "clamp"}.issuperset(group.between):
        return None
    if not all(pairs) or any(getattr(region.get_submodule(str(node.target)), "groups", 1) > 1 for node in group.takers):
        return None
    (wanted, found), *behind = (pair for pair in pairs if pair is not None)
    shift = wanted - found
    shift = torch.where(shift > _LEAST * shift.max(), shift, 0.0).clamp_min(0)
    before = after = 0.0
    for node, (old, new) in zip(group.takers, behind, strict=True):
        before += float((new - old).square().sum())
        after += float((new - old - _taken(region, node, shift)).square().sum())
    return shift if after < _BORNE_OUT * before else None


def _taken(region: Region, taker: fx.Node, shift: Tensor) -> Tensor:
    """Return what a bias behind takes of a shift."""
    module = region.get_submodule(str(taker.target))
    groups = int(getattr(module, "groups", 1))
    assert isinstance(module.weight, Tensor)
    parts = module.weight.detach().cpu().float().unflatten(0, (groups, -1))  # (groups, outputs, channels, ...)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        parts = parts.transpose(1, 2)
    columns = parts.flatten(3).sum(3) if parts.dim() > 3 else parts
    taken: Tensor = (columns @ shift.view(groups, -1, 1)).flatten()
    return taken


def _both(region: Region, path: str, node: fx.Node, reference: nn.Module, name: str) -> tuple[Tensor, Tensor] | None:
    """Return a tensor of a module in the float model, and the same in the quantized one."""
    wanted = getattr(region.get_submodule(str(node.target)), name, None)
    holder = find_module(reference, join_path(path, str(node.target)))
    if isinstance(holder, QuantizedWeight) and name == "weight":
        found: object = holder.dequantized("weight")
    else:
        found = getattr(holder, name, None)
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor) or wanted.shape != found.shape:
        return None
    return wanted.detach().cpu().float(), found.detach().cpu().float()


def _scale(copy: Region, folded: Region, group: ChannelGroup, factors: Tensor) -> bool:
    """Scale a group in the float model as it is, with its batch norms; whether that can be."""
    nodes = {node.name: node for node in copy.graph.nodes}
    modules = [_with_norm(copy, folded, nodes[maker.name]) for maker in group.makers]
    if any(module._parameters.get("weight") is None for module in modules):
        return False
    for module in modules:
        for name in ("weight", "bias"):
            value = module._parameters.get(name)
            if value is not None:
                put(module, name, value * factors.to(value).view(-1, *[1] * (value.dim() - 1)))
    for taker in group.takers:
        node = nodes[taker.name]
        starts = {node: group.starts[taker]} if taker in group.starts else {}
        alone = ChannelGroup(channels=group.channels, takers={node: node}, starts=starts)
        put(copy.get_submodule(str(node.target)), "weight", divided(copy, alone, node, factors))
    return True


def _with_norm(copy: Region, folded: Region, maker: fx.Node) -> nn.Module:
    """Return the module that makes the channels of a maker: the batch norm after it, where that is folded."""
    after = only_user(maker)
    op = OPS.of_node(after, copy) if after is not None and after.op == "call_module" else None
    gone = after is not None and all(node.name != after.name for node in folded.graph.nodes)
    return copy.get_submodule(str((after if op is not None and op.folds and gone else maker).target))  # type: ignore[union-attr]


def _move(copy: Region, folded: Region, group: ChannelGroup, shift: Tensor) -> bool:
    """Shift the channels of a group in the float model as it is; whether that can be."""
    nodes = {node.name: node for node in copy.graph.nodes}
    module = _with_norm(copy, folded, nodes[group.makers[0].name])
    bias = module._parameters.get("bias")
    if bias is None:
        return False
    put(module, "bias", bias - shift.to(bias))
    for taker in group.takers:
        behind, taken = copy.get_submodule(str(taker.target)), _taken(copy, nodes[taker.name], shift)
        assert isinstance(behind.weight, Tensor)
        old = behind._parameters.get("bias")
        behind.bias = nn.Parameter(taken.to(behind.weight) + (0 if old is None else old.detach()))
    return True


def _product(region: Region, node: fx.Node) -> Tensor | None:
    """Return the factors of a product that smoothing put into a graph; None for any other node."""
    if node.target is not operator.mul or not node.name.endswith("_smoothed") or len(node.args) != 2:
        return None
    given = node.args[1]
    value = getattr(region, str(given.target), None) if isinstance(given, fx.Node) and given.op == "get_attr" else None
    return value if isinstance(value, Tensor) and value.dim() == 1 else None


def _multiply(copy: Region, region: Region, product: fx.Node, factors: Tensor) -> bool:
    """Put a product of the quantized graph into the float one; whether all that it stands between is there."""
    nodes = {node.name: node for node in copy.graph.nodes}
    source = product.args[0]
    takers = [nodes.get(reader.name) for reader in _readers(product)]
    norm = nodes.get(source.name) if isinstance(source, fx.Node) else None
    if norm is None or product.name in nodes or not takers:
        return False
    found = [node for node in takers if node is not None and node.op == "call_module" and norm in node.all_input_nodes]
    if len(found) < len(takers):
        return False
    path = free_path(copy, f"{norm.name}_factors")
    copy.register_buffer(path, factors)
    with copy.graph.inserting_after(norm):
        given = copy.graph.get_attr(path)
    with copy.graph.inserting_after(given):
        made = copy.graph.create_node("call_function", operator.mul, (norm, given), name=product.name, type_expr=None)
    made.meta.update({key: norm.meta[key] for key in ("scope", "where", "tensor") if key in norm.meta})
    for node in found:
        node.replace_input_with(norm, made)
        module = copy.get_submodule(str(node.target))
        assert isinstance(module.weight, Tensor)
        put(module, "weight", module.weight / factors.to(module.weight))
    copy.recompile()
    return True


def _readers(node: fx.Node) -> list[fx.Node]:
    """Return what reads a node, through rounding."""
    found = []
    for user in node.users:
        rounds = user.target in (*torch_compat.QUANTIZE_OPS, *torch_compat.DEQUANTIZE_OPS)
        found += _readers(user) if rounds else [user]
    return found
