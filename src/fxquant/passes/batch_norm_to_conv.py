"""A batch norm that folds into no op   ->   a 1x1 convolution of single channels, with its gain and shift. Exact.

Only where nothing is trained: in training, the norm keeps its statistics.
"""

from __future__ import annotations

import torch
from torch import nn

from fxquant.graph.context import Context
from fxquant.graph.notes import Rewrite
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region
from fxquant.graph.tensor_users import count_users, is_sole_user
from fxquant.numerics.weights.fold_norm import BatchNorm, fold_bias, norm_gain
from fxquant.passes.hardware_form import note_rewrite, to_rewrite

_DONE = Rewrite(name="batch_norm_to_conv", text="a convolution of single channels for the batch norm, exact")


def batch_norm_to_conv(region: Region, context: Context) -> None:
    """Write batch norms that stand alone as convolutions of single channels, where the target asks for it."""
    if context.training:
        return
    made: dict[str, nn.Module] = {}
    users = count_users(region)
    for node, _ in to_rewrite(region, context, "batch_norm_to_conv", ("batch_norm",)):
        path = str(node.target)
        norm = region.get_submodule(path) if node.op == "call_module" else None
        if path not in made:
            if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
                continue
            if not is_sole_user(norm, users):
                continue  # other code reads what would go
            made[path] = as_conv(norm)
            set_submodule(region, path, made[path])
        node.meta.pop("unfused", None)
        note_rewrite(node, _DONE)


@torch.no_grad()
def as_conv(norm: BatchNorm) -> nn.Conv2d:
    """Return the convolution that computes what a norm does by its running statistics."""
    gain = norm_gain(norm)
    assert norm.running_mean is not None
    like = norm.running_mean
    with torch.device("meta"):
        conv = nn.Conv2d(norm.num_features, norm.num_features, 1, groups=norm.num_features)
    conv.weight = nn.Parameter(gain.to(like).reshape(-1, 1, 1, 1), requires_grad=False)
    conv.bias = nn.Parameter(fold_bias(None, norm, gain).to(like), requires_grad=False)
    return conv.train(norm.training)
