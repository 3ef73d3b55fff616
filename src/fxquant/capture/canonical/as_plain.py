"""Models that are not plain modules, made plain: compiled ones, and those with exported programs inside.

torch.compile's wrapper gives way to the module in it. An exported program's module refuses `train()` and `eval()`; in
the copy that is made here it does not, and its batch norms and dropouts follow them.
"""

from __future__ import annotations

from torch import fx, nn

from fxquant.capture.canonical.follow_mode import follow_mode
from fxquant.capture.symbolic import open_batch
from fxquant.errors import CaptureError
from fxquant.graph import torch_compat
from fxquant.graph.check_model import refuse_distributed, refuse_lazy, refuse_other
from fxquant.graph.clone_tree import clone_tree


def as_plain(model: nn.Module, caller: str, *, training: bool) -> nn.Module:
    """Return a model itself if it is plain, else a copy that is. `training` is the mode of a model whose own mode
    cannot be set, since exported programs refuse that."""
    refuse_other(model, caller)
    refuse_lazy(model, caller)
    refuse_distributed(model, caller)
    if torch_compat.is_scripted(model):
        raise CaptureError(
            f"{caller} got a torch.jit.{type(model).__name__}, whose code is not Python any more. "
            "Give the nn.Module that it was made of; script or trace the result if need be."
        )
    while (inner := torch_compat.compiled_module(model)) is not None:
        model = inner
    exported = any(map(torch_compat.is_exported, model.modules()))
    compiled = any(torch_compat.compiled_module(module) is not None for module in model.modules())
    in_place = any(module.__dict__.get("_compiled_call_impl") is not None for module in model.modules())
    if not (exported or compiled or in_place):
        return model
    tree = clone_tree(model)
    for module in list(tree.modules()):
        module.__dict__["_compiled_call_impl"] = None
        for name, child in module._modules.items():
            while child is not None and (within := torch_compat.compiled_module(child)) is not None:
                child = module._modules[name] = within
        if torch_compat.is_exported(module):
            module.__dict__.pop("train", None)
            module.__dict__.pop("eval", None)
            if isinstance(module, fx.GraphModule):
                follow_mode(module)
            open_batch.look(module.eval())
    return tree.train(training) if exported else tree
