"""What is known of a model whose root need not be a region: how it is called, and what was left in float, and why.

A model that does not trace as a whole is the user's own module tree, with regions inside. This is kept on its root as a
plain attribute, so it goes along with copies and pickles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from torch import nn
from torch.nn.utils.rnn import PackedSequence

from fxquant.graph import torch_compat
from fxquant.graph.nodes import held_value
from fxquant.graph.paths import class_name, join_path
from fxquant.graph.region import Region, origin_of, regions, set_origin, user_class
from fxquant.ops.table import OPS, OpTable

_KEY = "_fxquant_tree"
# what transformers computes a loss of, and nothing else
OF_A_LOSS = frozenset({"labels", "start_positions", "end_positions", "next_sentence_label"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A module left in float. `where` is the line of the user's code behind it, `hint` what to do about it."""

    path: str
    module: str  # its class
    reason: str
    where: str = ""
    hint: str = ""
    weighted: int = 0  # weighted ops that it is by itself; 0 for code around others
    reached: bool = True  # the example inputs came by


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """How a model was captured. `num_inputs` and `input_names` are as in Origin, without labels that a graph has not.

    `concrete` are arguments that calibration gives to a model whose Python runs as written.
    """

    method: str
    num_inputs: int | None = None
    input_names: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    concrete: tuple[tuple[str, Any], ...] = ()

    def named(self, batch: Mapping[str, object]) -> dict[str, object]:
        """Return what the model takes of a batch that is a dict, with the arguments that are given always."""
        taken = {key: value for key, value in batch.items() if not self.input_names or key in self.input_names}
        return {**dict(self.concrete), **taken}

    def call(self, model: nn.Module, batch: object) -> object:
        """Call a model that is called as this one is: with a dict, several values (labels go), or one."""
        if isinstance(batch, Mapping) and not (self.num_inputs == 1 and is_value(batch, self.input_names)):
            return model(**self.named(batch))
        values = batch[: self.num_inputs or len(batch)] if is_several(batch) else (batch,)
        return model(*values, **dict(self.concrete))


def is_several(batch: object) -> TypeGuard[tuple[Any, ...] | list[Any]]:
    """Tell whether a batch is several values for a model, not one; a packed sequence is one, though a tuple."""
    return isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence)


def is_value(batch: Mapping[str, object], names: Sequence[str]) -> bool:
    """Tell whether a dict is one value for a model, `forward(self, data)`: it has no argument's name among its keys."""
    return bool(batch) and bool(names) and batch.keys().isdisjoint(names)


def set_tree(model: nn.Module, tree: Tree) -> None:
    """Write it on the root of a model."""
    model.__dict__[_KEY] = tree


def tree_of(model: nn.Module) -> Tree:
    """Return what is known of a model; of one that is a single region, what the region knows."""
    found: Any = model.__dict__.get(_KEY)
    if isinstance(found, Tree):
        return found
    if isinstance(model, Region):
        origin = origin_of(model)
        inputs = [node for node in model.graph.nodes if node.op == "placeholder"]
        absent = {str(node.target) for node in inputs if node.target in OF_A_LOSS and held_value(node) is None}
        names = tuple(name for name in origin.input_names if name not in absent)
        return Tree(method=origin.method, num_inputs=origin.num_inputs, input_names=names)
    return Tree(method="")


def trees(model: nn.Module) -> dict[str, Tree]:
    """Return what is known of a model and of the parts that were captured by themselves, by path."""
    found = {path: module.__dict__.get(_KEY) for path, module in model.named_modules()}
    return {path: tree for path, tree in found.items() if isinstance(tree, Tree)}


def all_left(model: nn.Module) -> tuple[Left, ...]:
    """Return what was left in float in a model, and in parts of it that were captured by themselves, by full path."""
    return tuple(
        replace(left, path=join_path(path, left.path)) for path, tree in trees(model).items() for left in tree.left
    )


def place_regions(model: nn.Module) -> None:
    """Tell every region of a model where it stands."""
    for path, region in regions(model):
        steps = path.split(".") if path else []
        above = [".".join(steps[:count]) for count in range(len(steps))]
        around = tuple((at, class_name(user_class(model.get_submodule(at)))) for at in above)
        set_origin(region, replace(origin_of(region), path=path, outer=around))


def weighted_parts(module: nn.Module, ops: OpTable = OPS) -> dict[str, int]:
    """Tell how many weighted ops each module of a tree is by itself, by path; what stands in a region is left out."""
    found: dict[str, int] = {}
    seen: set[int] = set()

    def walk(part: nn.Module, path: str) -> None:
        if isinstance(part, Region) or id(part) in seen:
            return
        seen.add(id(part))
        count = _own_weights(part, ops)
        if count:
            found[path] = count
        for name, child in part._modules.items():
            if child is not None:
                walk(child, f"{path}.{name}" if path else name)

    walk(module, "")
    return found


def _own_weights(module: nn.Module, ops: OpTable) -> int:
    op = ops.of(torch_compat.class_before_script(module))
    if op is not None:
        return int(op.has_weight and "weight" in module._parameters)  # else a region is in its place
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)):
        return sum(p is not None and p.dim() >= 2 and "weight" in name for name, p in module._parameters.items())
    return 0
