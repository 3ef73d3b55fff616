"""After training: fold the batch norms of all blocks for good, with the running statistics.

The graph computes what it computed in eval mode; only the modules change. An `nn.Identity` stands where a norm was.
"""

from __future__ import annotations

import torch

from fxquant.graph.context import Context
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.passes.fold_bn import emptied


@torch.no_grad()
def merge_blocks(region: Region, context: Context) -> None:
    """Fold the batch norms of trained blocks into their weights."""
    paths = {id(module): path for path, module in region.named_modules()}
    for module in list(region.modules()):
        if type(module) is QatBlock and module.norm is not None:
            norm = module.norm
            module.merge_norm()
            set_submodule(region, paths[id(norm)], emptied(norm))
