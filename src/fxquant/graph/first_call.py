"""A model that was prepared without example inputs: its first call shows what they are, and it is captured then.

Until that it is a clone of the user's model, with its parameters, attributes and state_dict. It becomes the prepared
model in its own place, so whoever holds it has the prepared one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fxquant.errors import StageError
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.region import Region

_PREPARE = "_fxquant_prepare"

# (model, args, kwargs) -> the prepared model
Prepare = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], nn.Module]


class Waiting(nn.Module):
    """Comes before the user's class among the bases of a model that waits."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        begin(self, args, kwargs)
        return self(*args, **kwargs)


def waiting(model: nn.Module, prepare: Prepare) -> nn.Module:
    """A clone of a model that is prepared when it is first called."""
    tree = clone_tree(model)
    cls = type(tree)
    tree.__class__ = type(
        cls.__name__, (Waiting, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    )
    tree.__dict__[_PREPARE] = (prepare, tree.training)
    return tree


def begin(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Prepare a model that waits with these example inputs. If that raises, it goes on waiting."""
    prepare, training = model.__dict__[_PREPARE]
    plain = clone_tree(model)
    plain.__class__ = type(model).__mro__[2]
    del plain.__dict__[_PREPARE]
    prepared = prepare(plain.train(training), args, kwargs).train(model.training)
    model.__dict__.clear()
    model.__dict__.update(prepared.__dict__)
    model.__class__ = type(prepared)
    if isinstance(prepared, Region):
        model.__dict__["_graph"].owning_module = model


def refuse_waiting(model: nn.Module, caller: str) -> None:
    """Raise if the model was prepared without example inputs and has not been called."""
    if isinstance(model, Waiting):
        raise StageError(
            f"{caller}: the model was prepared without example inputs and has not seen any data, so it is not captured "
            "yet. Run calibrate(prepared, loader), or call it once, or give prepare_fx example_inputs."
        )
