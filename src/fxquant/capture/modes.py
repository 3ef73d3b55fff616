"""Code that branches on `self.training`: one graph holds one branch, so such a module stays a call of its own code.

A model for training is traced in train mode, and will be converted in eval mode. What torch's own modules do about
that (dropout, batch norm) is in the modules. For code, the graph is compared with the model in eval mode. If they
differ, the class whose code makes the difference is found by giving its modules alone the other flag.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from fxquant.capture.compare import difference, evaluating, run, trying
from fxquant.capture.origin import forward_line, reason
from fxquant.core.graph import Region, clone_tree
from fxquant.core.nodes import tensor_info
from fxquant.core.ops import OpTable
from fxquant.core.tree import weighted_parts
from fxquant.errors import CaptureError

_OTHER_INPUTS = "it does not take the example inputs in eval mode"


class ModeError(CaptureError):
    """Code of a module depends on the mode, so a graph in which it is written out holds for one mode only."""


def check_eval(model: nn.Module, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise unless the region of a model in train mode computes what the model computes in eval mode, too."""
    reference = clone_tree(model)
    called = {str(node.target) for node in region.graph.nodes if node.op == "call_module"}
    found = _difference(reference, region, args, kwargs)
    if found is None:
        return
    path = _culprit(reference, args, kwargs, called)
    if path is None and found is _OTHER_INPUTS:
        return
    module = reference.get_submodule(path or "")
    why = f"{type(module).__name__} branches on self.training, and a graph holds one branch: {found}"
    raise ModeError(why, reason=why, where=forward_line(module), path=path, data_dependent=True)


def alike_without_weights(model: nn.Module, path: str) -> list[str]:
    """The modules of the same class as the one at a path, if they have no weights: calls of them cost nothing."""
    cls = type(model.get_submodule(path))
    found = [at for at, module in model.named_modules() if type(module) is cls]
    weighted = any(True for at in found for _ in model.get_submodule(at).parameters())
    return [] if weighted or not path else found


def mark_skipped(region: Region, ops: OpTable) -> None:
    """Let calls that give their input back in eval mode, such as stochastic depth, count as dropout."""
    for node in region.graph.nodes:
        if node.op != "call_module" or ops.of_node(node, region) is not None or len(node.args) != 1 or node.kwargs:
            continue
        module, source = region.get_submodule(str(node.target)), node.args[0]
        info = tensor_info(source) if isinstance(source, fx.Node) else None
        if info is None or not info.is_float or any(True for _ in module.parameters()):
            continue
        x = torch.ones(info.shape, dtype=info.dtype)
        with trying(), evaluating(module):
            try:
                same = difference(module(x), x) is None
            except Exception:  # it wants to be given more
                continue
        if same:
            module.__dict__["op_class"] = nn.Dropout


def _difference(model: nn.Module, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    with trying(), evaluating(model), evaluating(region):
        try:
            theirs = run(model, args, kwargs)
        except Exception:
            return _OTHER_INPUTS
        try:
            return difference(run(region, args, kwargs), theirs)
        except Exception as error:
            return f"the graph does not run in eval mode: {reason(error)}"


def _culprit(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], called: set[str]) -> str | None:
    """The path of the module with the fewest weights whose code depends on its mode, but for calls of the graph."""
    found: dict[type[nn.Module], list[str]] = {}
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch.nn") and not isinstance(module, Region):
            inside = any(path == at or path.startswith(f"{at}.") for at in called)
            found.setdefault(type(module), []).extend([] if inside else [path])
    depends = [paths for paths in found.values() if paths and _depends(model, args, kwargs, paths)]
    sizes = [(len(weighted_parts(model.get_submodule(paths[0]))), paths[0]) for paths in depends]
    return min(sizes)[1] if sizes else None


def _depends(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], paths: list[str]) -> bool:
    """Whether the outputs differ if these modules alone are told that they are in the other mode."""
    with trying():
        for training in (False, True):
            with evaluating(model, not training):
                try:
                    plain = run(model, args, kwargs)
                except Exception:
                    continue
                for path in paths:
                    model.get_submodule(path).training = not training
                try:
                    return difference(run(model, args, kwargs), plain) is not None
                except Exception:
                    return True
    return False
