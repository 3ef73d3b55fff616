"""Scale the channels of a group: rows of the weights that make them, columns of those that take them.

W1[c] -> s_c W1[c],  b1_c -> s_c b1_c,  W2[:, c] -> W2[:, c] / s_c
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from fxquant.algorithms.channel_groups import ChannelGroup
from fxquant.graph.moved_calls import move_call
from fxquant.graph.region import Region
from fxquant.passes.read_op import module_of, setting


def rows_of(region: Region, makers: list[fx.Node]) -> Tensor:
    """Return the largest magnitude in the rows of each channel, over all makers with a weight of two axes or more."""
    found = [_weight(region, node).abs().flatten(1).amax(1) for node in makers if _weight(region, node).dim() > 1]
    return torch.stack(found).amax(0) if found else torch.zeros(())


def columns_of(region: Region, group: ChannelGroup, takers: list[fx.Node]) -> Tensor:
    """Return the largest magnitude in the columns of each channel, over some of a group's takers."""
    found = []
    for node in takers:
        columns = _columns(region, node).abs().amax((1, 3)).flatten()
        found += [columns[start : start + group.channels] for start in group.starts_in(node)]
    return torch.stack(found).amax(0)


@torch.no_grad()
def scale_group(region: Region, group: ChannelGroup, factors: Tensor) -> set[str]:
    """Multiply the channels of a group, and give the names of the tensors that changed."""
    for node in group.makers:
        module = region.get_submodule(str(node.target))
        for name in ("weight", "bias"):
            value = module._parameters.get(name)
            if value is not None:
                shaped = factors.to(value).view(-1, *[1] * (value.dim() - 1))
                put(module, name, value.detach() * shaped)
    for node in group.takers:
        put(region.get_submodule(str(node.target)), "weight", divided(region, group, node, factors))
    return group.changed


def divided(region: Region, group: ChannelGroup, taker: fx.Node, factors: Tensor) -> Tensor:
    """Return the weight of a taker for channels that are multiplied with factors."""
    columns = _columns(region, taker)
    every = columns.new_ones(columns.shape[0] * columns.shape[2])
    for start in group.starts_in(taker):
        every[start : start + group.channels] = factors.to(columns)
    return (columns / every.view(len(columns), 1, -1, 1)).reshape(_weight(region, taker).shape)


@torch.no_grad()
def absorb(region: Region, maker: fx.Node, takers: list[fx.Node], shift: Tensor) -> None:
    """Take a shift per channel out of the maker's bias, and give its product with the takers' weights to theirs."""
    module = region.get_submodule(str(maker.target))
    assert isinstance(module.bias, Tensor)
    put(module, "bias", module.bias.detach() - shift.to(module.bias))
    for node in takers:
        taker, columns = region.get_submodule(str(node.target)), _columns(region, node)
        assert isinstance(taker.bias, Tensor)
        moved = (columns.sum(3) @ shift.to(columns).view(len(columns), -1, 1)).flatten()
        put(taker, "bias", taker.bias.detach() + moved)


def put_pad(region: Region, node: fx.Node, value: float) -> None:
    """Pad with another number in place of zeros, which is on the grid of the tensor."""
    module = module_of(region, node)
    move_call(node, "pad", tuple(setting(node, module, 1, "pad" if module is None else "padding")), "constant", value)


def put(module: nn.Module, name: str, value: Tensor) -> None:
    """A new parameter in place of one that the model which was prepared may have, too."""
    old = module._parameters[name]
    assert old is not None
    setattr(module, name, nn.Parameter(value.detach(), requires_grad=old.requires_grad))


def _weight(region: Region, node: fx.Node) -> Tensor:
    weight = region.get_submodule(str(node.target)).weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _columns(region: Region, node: fx.Node) -> Tensor:
    """Return a weight as (groups, outputs, channels, taps), both for each group."""
    weight = _weight(region, node)
    groups = int(getattr(region.get_submodule(str(node.target)), "groups", 1))
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
