"""A batch that a model does not take, by its number, its shapes and the module at which it failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from fxquant.capture.source_lines import calls_of, reason_in_graph
from fxquant.errors import CalibrationError, FxQuantError
from fxquant.graph.tree import tree_of


@contextmanager
def naming_batch(number: int, batch: object, model: nn.Module) -> Iterator[None]:
    """Say of an error of torch, or of the model's own code, which batch it was raised for; the first is number 1."""
    try:
        yield
    except (FxQuantError, MemoryError):  # the first kind says what is wrong by itself
        raise
    except Exception as error:
        raise CalibrationError(
            f"batch {number}, {shapes_of(batch)}, fails{_module(error, model)}: {_message(error)} "
            f"{_advice(batch, model)}"
        ) from error


def _advice(batch: object, model: nn.Module) -> str:
    """Return what to do: about a batch that is no input at all, just that."""
    names = tree_of(model).input_names
    if any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(batch)):
        return "Give tensors: torch.from_numpy(array)."
    if isinstance(batch, Mapping) and names and batch.keys().isdisjoint(names):
        return f"The model takes {', '.join(map(repr, names))}: give dicts by these names, or tuples."
    one = " A list or tuple is read as the arguments of forward, then labels: as one argument, give (batch,)."
    alike = tree_of(model).num_inputs == 1 and _is_alike(batch)
    return "Give batches that the float model takes, with the shapes and dtypes of its example inputs." + one * alike


def _is_alike(batch: object) -> bool:
    """Tell whether a batch is several tensors that may well be one argument, as pictures of several sizes are."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not all(isinstance(x, Tensor) for x in batch):
        return False
    return len({(x.dtype, x.dim()) for x in batch}) == 1 and batch[0].is_floating_point()


def shapes_of(batch: object) -> str:
    """Return the dtypes and shapes of a batch's tensors, in its form."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {shapes_of(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (tuple, list)):
        return "(" + ", ".join(map(shapes_of, batch)) + ")"
    return f"{'an' if type(batch).__name__[0] in 'aeio' else 'a'} {type(batch).__name__}"


def _module(error: Exception, model: nn.Module) -> str:
    """Return " at module 'x.y' (Class)" for the innermost module, or call of a graph, that the error went through."""
    found = ""
    for call, module, path in calls_of(error, model):
        node = call.tb_frame.f_locals.get("n")
        if isinstance(node, fx.Node) and node.op != "call_module":
            found = f" at {node.name!r}"
        elif path:
            found = f" at module {path!r} ({module.__class__.__name__})"
    return found


def _message(error: Exception) -> str:
    text = reason_in_graph(error)
    return text if text[-1] in ".!?" else f"{text}."
