"""Shift what lies between zero and a clip to the middle of a grid that has as many steps below zero as above.

    clip(y, 0, e)  ->  clip(y - e/2, -e/2, e/2)        b1 - e/2,  b2 + W2 e/2

Behind a relu6, half of a signed grid without a zero point is empty; so its steps become half as wide. The bias before
takes the shift and those behind give it back: the same function. Ops that pad with zeros pad with -e/2; convolutions
that pad by themselves cannot. Biases of a few bits lose more by the shift than the grid gains, unless weights make up
for that (take_rest.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx, nn

from fxquant.algorithms.channel_groups import ChannelGroup
from fxquant.algorithms.scale_group import absorb, put_pad
from fxquant.config.spec import Spec
from fxquant.graph.moved_calls import move_call
from fxquant.graph.notes import Rewrite
from fxquant.graph.region import Region, preparation_of
from fxquant.passes.candidates import choice_of
from fxquant.passes.hardware_form import note_rewrite
from fxquant.passes.read_op import module_of, setting

_CONSTANT = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)  # those of zeros are among them


def centre_clips(region: Region, group: ChannelGroup) -> bool:
    """Centre what the clip of a group leaves, if that is all between its weights, and these take a shift; tell whether.

    Example: a depthwise convolution and relu6, before a convolution of 1 x 1.
    """
    if len(group.makers) != 1 or group.starts or group.between.count("clamp") != 1:
        return False
    if not {"clamp", "pad"}.issuperset(group.between):
        return False
    ((clip, end),), maker = group.clips.items(), group.makers[0]
    weights = (maker, *group.takers)
    if math.isinf(end) or not _is_half_empty(clip) or not all(_takes_shift(region, each, maker) for each in weights):
        return False
    absorb(region, maker, [*group.takers], torch.full((group.channels,), end / 2))
    move_call(clip, "hardtanh", -end / 2, end / 2)
    for node in group.tensors:
        if node is not maker and node is not clip and _pads_with_zeros(region, node):
            put_pad(region, node, -end / 2)
            note_rewrite(node, Rewrite(name="centre_clips", text=f"pads with {-end / 2:g}, exact"))
    note_rewrite(clip, Rewrite(name="centre_clips", text=f"clip of 0 to {end:g} as one of +-{end / 2:g}, exact"))
    return True


def _is_half_empty(node: fx.Node) -> bool:
    """Tell whether a tensor is to have a grid with as many steps below zero."""
    choice = choice_of(node)
    spec = choice.qconfig.output_spec if choice is not None and choice.qconfig is not None else None
    return spec is not None and spec.signed and spec.symmetric


def _takes_shift(region: Region, node: fx.Node, maker: fx.Node) -> bool:
    choice, module = choice_of(node), region.get_submodule(str(node.target))
    few_bits = choice is not None and choice.qconfig is not None and isinstance(choice.qconfig.bias, Spec)
    few_bits = few_bits and not _is_made_up_for(region)
    padded = node is not maker and any(getattr(module, "_reversed_padding_repeated_twice", ()))
    return isinstance(getattr(module, "bias", None), Tensor) and not few_bits and not padded


def _is_made_up_for(region: Region) -> bool:
    algorithms = preparation_of(region).algorithms
    return any(each.chooses_weights for each in algorithms) and any(each.makes_up_for_biases for each in algorithms)


def _pads_with_zeros(region: Region, node: fx.Node) -> bool:
    """Tell so of an op that pads: others repeat what is there."""
    module = module_of(region, node)
    mode = setting(node, module, 2, "mode", "constant") if module is None else "constant"
    return isinstance(module, _CONSTANT) or (module is None and mode in ("constant", 0))
