"""What is given as a model, checked before anything is done with it."""

from __future__ import annotations

import warnings

import torch
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


def refuse_distributed(model: nn.Module, caller: str) -> None:
    """Raise for a model that shares gradients among processes: what is made of it would not."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise CaptureError(
            f"{caller} got a DistributedDataParallel. Give the model in it, model.module, and wrap what prepare_qat_fx "
            "returns again, to train it."
        )


def refuse_meta(model: nn.Module, caller: str) -> None:
    """Raise if the model has tensors without numbers."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise CaptureError(
                f"{caller} got a model whose {name!r} is on the meta device, without numbers. Load its weights first: "
                'model.to_empty(device="cpu"), then model.load_state_dict(...).'
            )


def warn_of_dtype(model: nn.Module, *, stacklevel: int) -> None:
    """Tell of a model that computes in another dtype than float32: weights become integers there, and nothing else."""
    found = {each.dtype for each in model.parameters() if each.is_floating_point() and each.dim() > 1}
    if found and torch.float32 not in found:
        dtype = next(iter(found))
        warnings.warn(
            f"{type(model).__name__} computes in {dtype}, for which there are no int8 kernels: its weights will "
            f"be int8, its ops stay in {dtype}. Quantize model.float() on float32 data; the result may be moved.",
            stacklevel=stacklevel + 1,
        )
