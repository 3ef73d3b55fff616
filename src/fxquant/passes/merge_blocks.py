"""After training: fold the batch norms of all blocks for good, with the running statistics.

The graph computes what it computed in eval mode; only the modules change. An `nn.Identity` stands where a norm was.
"""

from __future__ import annotations

import torch

from fxquant.core.graph import Region
from fxquant.core.paths import set_submodule
from fxquant.numerics.qat_block import QatBlock
from fxquant.passes.fold_bn import emptied


@torch.no_grad()
def merge_blocks(region: Region) -> Region:
    """Fold what the blocks of a region refer to."""
    paths = {id(module): path for path, module in region.named_modules()}
    for module in list(region.modules()):
        if type(module) is QatBlock and module.norm is not None:
            norm = module.norm
            module.merge_norm()
            set_submodule(region, paths[id(norm)], emptied(norm))
    return region
