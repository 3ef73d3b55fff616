"""Fix every scale of a prepared graph, and round the weights of post-training graphs as well.

What comes out computes in float what the converted graph computes in integers. Quantizers without data, and those of
additive masks, are switched off, as conversion leaves them out.
"""

from __future__ import annotations

from fxquant.core.graph import Region
from fxquant.numerics.qat_block import QatBlock
from fxquant.passes.convert import quantizer_of, why_dropped
from fxquant.passes.halve_weights import round_halves
from fxquant.passes.insert_blocks import insert_blocks


def freeze_quantizers(region: Region) -> Region:
    """Freeze what has a range, switch off what has none."""
    insert_blocks(region)
    round_halves(region)
    for module in region.modules():
        if type(module) is QatBlock and not module.weight_fq.frozen:
            module.weight_fq.freeze(module.weight)
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
    return region
