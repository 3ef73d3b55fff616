"""Code that branches on `self.training`: one graph holds one branch, so such a module stays a call of its own code.

A model for training is traced in train mode, and will be converted in eval mode. What torch's own modules do about
that (dropout, batch norm) is in the modules. For code, the graph is compared with the model in eval mode. If they
differ, the class whose code makes the difference is found by giving its modules alone the other flag.
"""

from __future__ import annotations

import torch
from torch import fx, nn

from fxquant.capture.reasons import Cause
from fxquant.capture.recording import Recording
from fxquant.capture.run_untraced import difference, evaluating, trying
from fxquant.capture.source_lines import forward_line, reason
from fxquant.errors import CaptureError
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.nodes import tensor_info
from fxquant.graph.region import Region
from fxquant.graph.tree import weighted_parts
from fxquant.ops.table import OpTable

_OTHER_INPUTS = "it does not take the example inputs in eval mode"


class ModeError(CaptureError):
    """Code of a module depends on the mode, so a graph in which it is written out holds for one mode only."""


def check_eval(recording: Recording, region: Region) -> None:
    """Raise unless the region of a model in train mode computes what the model computes in eval mode, too."""
    called = {str(node.target) for node in region.graph.nodes if node.op == "call_module"}
    found = _difference(recording, region)
    if found is None:
        return
    path = _culprit(recording, called)
    if path is None and found is _OTHER_INPUTS:
        return
    module = recording.model.get_submodule(path or "")
    why = Cause.MODE.because(cls=type(module).__name__, found=found)
    message = f"{why.text}. What to do: put the branch into a function marked with fxquant.wrap, or use method='auto'."
    raise ModeError(message, why=why, where=forward_line(module), path=path, data_dependent=True)


def alike_without_weights(model: nn.Module, path: str) -> list[str]:
    """Find the modules of the same class as the one at a path, if they have no weights: calls of them cost nothing."""
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


def _difference(recording: Recording, region: Region) -> str | None:
    with trying(), evaluating(region):
        try:
            theirs = recording.evaluated_outputs()
        except Exception:
            return _OTHER_INPUTS
        try:
            return difference(recording.run(region, recording.args, recording.kwargs), theirs)
        except Exception as error:
            return f"the graph does not run in eval mode: {reason(error)}"


def _culprit(recording: Recording, called: set[str]) -> str | None:
    """Find the module with the fewest weights whose code depends on its mode, but for calls of the graph."""
    model = clone_tree(recording.model)
    found: dict[type[nn.Module], list[str]] = {}
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch.nn") and not isinstance(module, Region):
            inside = any(path == at or path.startswith(f"{at}.") for at in called)
            found.setdefault(type(module), []).extend([] if inside else [path])
    depends = [paths for paths in found.values() if paths and _depends(recording, model, paths)]
    sizes = [(len(weighted_parts(model.get_submodule(paths[0]))), paths[0]) for paths in depends]
    return min(sizes)[1] if sizes else None


def _depends(recording: Recording, model: nn.Module, paths: list[str]) -> bool:
    """Tell whether the outputs differ if these modules alone are told that they are in the other mode."""
    args, kwargs = recording.args, recording.kwargs
    with trying():
        for training in (False, True):
            with evaluating(model, not training):
                try:
                    plain = recording.run(model, args, kwargs)
                except Exception:
                    continue
                for path in paths:
                    model.get_submodule(path).training = not training
                try:
                    return difference(recording.run(model, args, kwargs), plain) is not None
                except Exception:
                    return True
    return False
