"""Copies of a module tree that share its tensors, so that passes may change the one and not the other."""

from __future__ import annotations

import copy
import types
import typing
from collections import OrderedDict
from typing import Any

from torch import nn

from fxquant.graph import torch_compat
from fxquant.graph.own import own_objects
from fxquant.graph.region import Region, regions


def clone_tree(module: nn.Module, *, share_tensors: bool = True, share_objects: bool = True) -> nn.Module:
    """Return a copy of the module tree. Modules that occur at several paths stay one module.

    Plain attributes are shared; with `share_objects` False they are copied where that is safe (`graph.own`), and so are
    buffers and plain tensors. Tensors are shared otherwise, unless `share_tensors` is False.
    """
    memo: dict[int, Any] = {}
    tree = _clone(module, memo, share_tensors)
    if not share_objects:
        if share_tensors:
            memo.update({id(parameter): parameter for parameter in module.parameters()})
        own_objects(tree, memo, buffers=share_tensors)
        return tree
    for clone in tree.modules():
        for name, value in clone.__dict__.items():
            # a method put on the instance (model.forward = ...) belongs to the original; give the clone its own
            if isinstance(value, types.MethodType) and id(value.__self__) in memo:
                clone.__dict__[name] = types.MethodType(value.__func__, memo[id(value.__self__)])
    return tree


def let_go(tree: nn.Module) -> None:
    """Cut the graphs of a copy that nobody needs any more from its modules.

    These are free as soon as the copy is, then, and not only when the garbage collector comes, which takes long if it
    has to look for many.
    """
    for _, region in regions(tree):
        region.graph.owning_module = None


def _clone(module: nn.Module, memo: dict[int, Any], share_tensors: bool) -> nn.Module:
    if id(module) in memo:
        return typing.cast(nn.Module, memo[id(module)])
    if torch_compat.is_scripted(module):
        memo[id(module)] = module
        return module
    if isinstance(module, Region):
        tree: nn.Module = copy.copy(module)
    else:
        # not the class's own __new__: a GraphModule's makes another class, without a forward
        tree = object.__new__(type(module))
        tree.__dict__.update(module.__dict__)
    memo[id(module)] = tree
    for key, value in module.__dict__.items():
        if isinstance(value, dict) and key.startswith("_"):
            # each module has a dozen of them, mostly empty
            known = type(value) in (dict, OrderedDict)
            tree.__dict__[key] = type(value)() if known and not value else value.copy() if known else copy.copy(value)
    tree.__dict__["_modules"] = {
        name: None if child is None else _clone(child, memo, share_tensors) for name, child in module._modules.items()
    }
    if not share_tensors:
        for table in (tree._parameters, tree._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    kept = tensor if tensor.is_leaf else tensor.detach()  # the history of a call is not copied
                    table[name] = memo.setdefault(id(tensor), copy.deepcopy(kept))
    return tree
