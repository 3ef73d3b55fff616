"""Fix every scale of a prepared graph; and, for a frozen model, round the weights of post-training graphs as well.

What comes out of both computes in float what the converted graph computes in integers. Quantizers without data, and
those of additive masks, are switched off, as conversion leaves them out.
"""

from __future__ import annotations

import torch
from torch import nn

from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.graph.tensor_users import is_read_around, reads
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.passes.find_quantizer import quantizer_of, why_dropped
from fxquant.passes.halve_weights import round_halves
from fxquant.passes.insert_blocks import put_blocks


def freeze_quantizers(region: Region, context: Context) -> None:
    """Fix the scale of each quantizer that has a range, and switch off those without."""
    _freeze_blocks(region)
    for node in region.graph.nodes:
        quantizer = quantizer_of(region, node)
        if quantizer is not None and why_dropped(quantizer) is None:
            quantizer.freeze()
        elif quantizer is not None:
            quantizer.state = "off"
    for module in region.modules():
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_leaf:  # those of a copied ScriptModule are not
                parameter.requires_grad_(False)


def round_weights(region: Region, context: Context) -> None:
    """Round the weights that no block rounds yet: those of a model that was not trained."""
    put_blocks(region, {})
    round_halves(region)
    _freeze_blocks(region)
    _round_read(region)


@torch.no_grad()
def _round_read(region: Region) -> None:
    """Let other code that reads the weight of a block read what conversion leaves of it."""
    read = {id(tensor) for _, tensor in reads(region)}
    rounded: dict[int, nn.Parameter] = {}
    for module in region.modules():
        if type(module) is QatBlock and (id(module.weight) in read or is_read_around(module)):
            key = id(module.weight)
            if key not in rounded:
                rounded[key] = nn.Parameter(module.weight_fq(module.weight).detach(), requires_grad=False)
            module.weight = rounded[key]


def _freeze_blocks(region: Region) -> None:
    for module in region.modules():
        if type(module) is QatBlock and not module.weight_fq.frozen:
            module.weight_fq.freeze(module.weight)
