"""Bags of embeddings: what F.embedding_bag and its ATen overload say, as an nn.EmbeddingBag and its arguments.

The ATen op returns four tensors, of which only the first is the result.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from fxquant.capture.canonical.stock import Stock, read_call

ATEN_BAGS = tuple(getattr(torch.ops.aten.embedding_bag, name) for name in torch.ops.aten.embedding_bag.overloads())
_MODES = ("sum", "mean", "max")


@dataclass(frozen=True, slots=True)
class Bag:
    """A call: the weight, the settings of the module, and the arguments of its forward; `results` are its users."""

    weight: Any
    settings: dict[str, Any]
    args: tuple[Any, ...]
    results: tuple[fx.Node, ...]

    def stock(self, shape: torch.Size) -> Stock:
        settings = {"num_embeddings": shape[0], "embedding_dim": shape[1], **self.settings}
        return Stock(cls=nn.EmbeddingBag, settings=settings, tensors={"weight": self.weight})


def read_bag(node: fx.Node) -> Bag | None:
    """Return the bag that a call makes; None if a module cannot say it."""
    call = read_call(node)
    if call is None or call.get("max_norm") is not None:  # which changes the weight
        return None
    results: tuple[fx.Node, ...] = (node,)
    if node.target in ATEN_BAGS:
        for unread in [user for user in node.users if user.target is operator.getitem and not user.users]:
            node.graph.erase_node(unread)
        results = tuple(node.users)
        if any(user.target is not operator.getitem or user.args[1] != 0 for user in results):
            return None
        call["mode"] = _MODES[call["mode"]]
    settings = {
        "mode": call["mode"],
        "scale_grad_by_freq": call["scale_grad_by_freq"],
        "sparse": call["sparse"],
        "include_last_offset": call["include_last_offset"],
        "padding_idx": None if (padding := call.get("padding_idx")) is None or padding < 0 else padding,
    }
    if any(isinstance(value, fx.Node) for value in settings.values()):
        return None
    args = (call["input"], call.get("offsets"), call.get("per_sample_weights"))
    return Bag(call["weight"], settings, args, results)
