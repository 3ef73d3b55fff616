"""What is given as a model, checked before anything is done with it."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from fxquant.errors import CaptureError


def refuse_other(model: object, caller: str) -> None:
    """Raise unless it is a module, and say what to give in its place."""
    if isinstance(model, nn.Module):
        return
    name = type(model).__name__
    if isinstance(model, type):
        raise CaptureError(f"{caller} got the class {model.__name__}. Give a module: {model.__name__}(...).")
    if hasattr(model, "graph_module"):
        todo = "Call .module() on it."
    elif isinstance(model, str):
        todo = "Load it first (fxquant.load for a file of fxquant.save), and give the module."
    else:
        todo = "Give a torch.nn.Module."
    raise CaptureError(f"{caller} got a {name}, which is no module. {todo}")


def refuse_lazy(model: nn.Module, caller: str) -> None:
    """Raise if the model has parameters or buffers that wait for a first call."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise CaptureError(
                f"{caller} got a model whose {name!r} has no shape yet (a Lazy module). Call the model once with an "
                "input, or load its state_dict."
            )


def refuse_meta(model: nn.Module, caller: str) -> None:
    """Raise if the model has tensors without numbers."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise CaptureError(
                f"{caller} got a model whose {name!r} is on the meta device, without numbers. Load its weights first: "
                'model.to_empty(device="cpu"), then model.load_state_dict(...).'
            )
