"""Bias correction: rounding a weight moves the mean of its op's output; the bias takes that back.

    E[W x] + b  =  E[Wq x] + b'      with      b' = b + (W - Wq) E[x]

E[x] comes from calibration: `watch_means` adds calls of `ChannelMean` beside the weighted ops of a prepared graph, and
`correct_biases` reads and removes them. Ops without a bias are left as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from fxquant.core.graph import Region
from fxquant.core.ops import OPS, OpTable, activation_nodes
from fxquant.core.plan import note_of
from fxquant.core.spec import Spec
from fxquant.numerics.affine import dequantize
from fxquant.numerics.channel_mean import ChannelMean
from fxquant.numerics.weights import quantize_weight

_AXIS = {"linear": -1, "conv1d": 1, "conv2d": 1, "conv3d": 1}


def watch_means(region: Region, ops: OpTable = OPS) -> Region:
    """Watch the channel means of the inputs of static int8 ops that have a bias."""
    path = region._region.quantizer_path
    quantizers = region.get_submodule(path)
    assert isinstance(quantizers, nn.ModuleDict)
    made: dict[tuple[fx.Node, int], ChannelMean] = {}
    for node in list(region.graph.nodes):
        found = _weighted(region, node, ops)
        if found is None:
            continue
        module, axis, operand = found
        assert isinstance(module.weight, Tensor)
        channels = module.weight.shape[1] * getattr(module, "groups", 1)
        if (operand, axis) not in made:
            name = f"{node.name}_mean"
            made[operand, axis] = quantizers[name] = ChannelMean(int(channels), axis)
            with region.graph.inserting_after(operand):
                region.graph.call_module(f"{path}.{name}", (operand,))
    region.recompile()
    return region


def correct_biases(region: Region, ops: OpTable = OPS) -> Region:
    """Correct the biases from the means that were seen, and remove what watched them."""
    seen: dict[nn.Module, tuple[Spec, ChannelMean]] = {}
    for node in region.graph.nodes:
        found, note = _weighted(region, node, ops), note_of(node)
        watcher = _watcher(region, found[2], found[1]) if found is not None else None
        if found is None or watcher is None or note is None or note.weight is None:
            continue
        module = found[0]
        if module in seen:
            seen[module][1].merge(watcher)
        else:
            own = ChannelMean(watcher.total.numel(), watcher.axis)
            own.merge(watcher)
            seen[module] = note.weight, own
    for module, (spec, watcher) in seen.items():
        mean = watcher.mean()
        if mean is not None:
            _correct(module, spec, mean)
    _remove(region)
    return region


def _weighted(region: Region, node: fx.Node, ops: OpTable) -> tuple[nn.Module, int, fx.Node] | None:
    """(module, axis of its input's channels, input) if a node is an int8 op with a bias on a static int8 input."""
    note, op = note_of(node), ops.of_node(node, region)
    if note is None or note.weight is None or op is None or op.kind not in _AXIS or node.op != "call_module":
        return None
    specs = region._region.quantizers or {}
    if not note.inputs or note.inputs[0] is None or specs[note.inputs[0]].dynamic:
        return None
    module = region.get_submodule(str(node.target))
    if not isinstance(getattr(module, "weight", None), Tensor) or getattr(module, "bias", None) is None:
        return None
    return module, _AXIS[op.kind], activation_nodes(node, op)[0]


def _watcher(region: Region, operand: fx.Node, axis: int) -> ChannelMean | None:
    for user in operand.users:
        if user.op == "call_module":
            module = region.get_submodule(str(user.target))
            if isinstance(module, ChannelMean) and module.axis == axis:
                return module
    return None


@torch.no_grad()
def _correct(module: nn.Module, spec: Spec, mean: Tensor) -> None:
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor) and isinstance(bias, Tensor)
    values = weight.detach().to(torch.float32)
    lost = values - dequantize(*quantize_weight(values, spec, "weight"), spec)
    groups = getattr(module, "groups", 1)
    taps = lost.flatten(2).sum(2) if lost.dim() > 2 else lost  # every tap of a kernel sees the same mean
    rows = taps.view(groups, -1, taps.shape[1]) @ mean.to(taps.device).view(groups, -1, 1)
    module.bias = nn.Parameter((bias + rows.flatten().to(bias.dtype)).detach(), requires_grad=bias.requires_grad)


def _remove(region: Region) -> None:
    for node in list(region.graph.nodes):
        if node.op == "call_module" and isinstance(region.get_submodule(str(node.target)), ChannelMean):
            region.graph.erase_node(node)
            region.delete_submodule(str(node.target))
    region.recompile()
