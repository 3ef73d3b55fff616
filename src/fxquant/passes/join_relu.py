"""Put weighted ops and the relu behind them into one module, as code that was written for torch.ao's `fuse_fx` expects.

    conv1 -> relu          becomes          conv1.0 -> conv1.1, with conv1 = Fused(conv, ReLU())

For reading only: when the model is prepared, the two join their kernel as any others do. A relu that is called in
other places too, or a function, is written as a module of its own; where no call is left, an `nn.Identity` stands.
"""

from __future__ import annotations

from collections import Counter

from torch import Tensor, fx, nn

from fxquant.graph.context import Context
from fxquant.graph.hooks import has_forward_hooks
from fxquant.graph.nodes import only_user
from fxquant.graph.paths import set_submodule
from fxquant.graph.region import Region, preparation_of


class Fused(nn.Sequential):
    """A weighted op, at 0, and the relu behind it, at 1. Its weight and bias read as the op's."""

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, *args: object) -> None:
        """Take the op's tensors by the names that they have in the float model, too."""
        for name in ("weight", "bias"):
            if f"{prefix}{name}" in state_dict and f"{prefix}0.{name}" not in state_dict:
                state_dict[f"{prefix}0.{name}"] = state_dict.pop(f"{prefix}{name}")
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def weight(self) -> Tensor | nn.Module:
        """The weight of the op."""
        return self[0].weight

    @property
    def bias(self) -> Tensor | nn.Module | None:
        """The bias of the op."""
        return self[0].bias


def join_relu(region: Region, context: Context) -> None:
    """Put convolutions and linears with the relu behind them into one module, `conv1[0]` and `conv1[1]`."""
    calls = Counter(node.target for node in region.graph.nodes if node.op == "call_module")
    joined: Counter[object] = Counter()
    moved: dict[str, str] = {}
    for node in list(region.graph.nodes):
        relu = _relu_behind(node, region, context) if calls[node.target] == 1 else None
        if relu is None:
            continue
        path = str(node.target)
        set_submodule(region, path, Fused(region.get_submodule(path), nn.ReLU()).train(region.training))
        node.target = moved[path] = f"{path}.0"
        if relu.op == "call_module":
            joined[relu.target] += 1
        with region.graph.inserting_before(relu):
            new = region.graph.call_module(f"{path}.1", (node,))
        new.meta = relu.meta
        relu.replace_all_uses_with(new)
        region.graph.erase_node(relu)
    preparation = preparation_of(region)
    preparation.folded = tuple(each.moved(moved.get(each.op, each.op)) for each in preparation.folded)
    for target, count in joined.items():
        if count == calls[target]:
            set_submodule(region, str(target), nn.Identity().train(region.training))


def _relu_behind(node: fx.Node, region: Region, context: Context) -> fx.Node | None:
    op, user = context.ops.of_node(node, region), only_user(node)
    if op is None or not op.folds_norm or node.op != "call_module" or user is None:
        return None
    behind = context.ops.of_node(user, region)
    if behind is None or nn.ReLU not in behind.modules:
        return None
    hooked = user.op == "call_module" and has_forward_hooks(region.get_submodule(str(user.target)))
    return None if hooked else user
