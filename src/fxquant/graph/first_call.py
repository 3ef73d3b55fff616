"""A model that was prepared without example inputs: its first call shows what they are, and it is captured then.

Until that it is a clone of the user's model, with its parameters, attributes and state_dict. It becomes the prepared
model in its own place, so whoever holds it has the prepared one afterwards. Converted before its first call, it waits
on, with the state_dict that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.modules.module import _IncompatibleKeys

from fxquant.errors import CaptureError, StageError
from fxquant.graph.check_model import refuse_other
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.region import Region

_PREPARE = "_fxquant_prepare"
_STATE = "_fxquant_state"

# (model, args, kwargs) -> the prepared model
Prepare = Callable[[nn.Module, tuple[object, ...], dict[str, object]], nn.Module]
# a model -> its graph, as far as it is known without inputs
Look = Callable[[nn.Module], fx.Graph]


class Waiting(nn.Module):
    """Comes before the user's class among the bases of a model that waits."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        begin(self, args, kwargs)
        return self(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "graph":
                raise
        _, _, look = self.__dict__[_PREPARE]
        try:
            return look(_plain(self))
        except CaptureError as error:
            raise AttributeError(f"the model has no graph before its first call: {error}") from error


class WaitingConverted(Waiting):
    """Converted before it was captured. The state_dict that it is given is checked when it is called."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        state = self.__dict__[_STATE]
        begin(self, args, kwargs)
        if state is not None:
            nn.Module.load_state_dict(self, *state)
        return self(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        self.__dict__[_STATE] = ({name: value.clone() for name, value in state_dict.items()}, strict, assign)
        return _IncompatibleKeys([], [])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__[_STATE] is None:
            refuse_waiting(self, "state_dict")
        return dict(self.__dict__[_STATE][0])


def waiting(model: nn.Module, prepare: Prepare, look: Look) -> nn.Module:
    """Return a clone of a model that is prepared when it is first called; `look` shows its graph until then."""
    tree = clone_tree(model)
    _wait_as(tree, Waiting)
    tree.__dict__[_PREPARE] = (prepare, tree.training, look)
    return tree


def waiting_converted(model: nn.Module, convert: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return a clone of a model that waits, which is prepared and converted when it is first called."""
    prepare, training, look = model.__dict__[_PREPARE]
    tree = _plain(model)
    _wait_as(tree, WaitingConverted)

    def both(plain: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> nn.Module:
        return convert(prepare(plain, args, kwargs))

    tree.__dict__.update({_PREPARE: (both, training, look), _STATE: None})
    return tree.eval()


def _wait_as(tree: nn.Module, how: type[Waiting]) -> None:
    cls = type(tree)
    tree.__class__ = type(cls.__name__, (how, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})


def _plain(model: nn.Module) -> nn.Module:
    """Return the user's model again."""
    plain = clone_tree(model)
    plain.__class__ = type(model).__mro__[type(model).__mro__.index(Waiting) + 1]
    for name in (_PREPARE, _STATE):
        plain.__dict__.pop(name, None)
    return plain


def begin(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Prepare a model that waits with these example inputs. If that raises, it goes on waiting."""
    prepare, training, _ = model.__dict__[_PREPARE]
    prepared = prepare(_plain(model).train(training), args, kwargs).train(model.training)
    model.__dict__.clear()
    model.__dict__.update(prepared.__dict__)
    model.__class__ = type(prepared)
    if isinstance(prepared, Region):
        model.__dict__["_graph"].owning_module = model


def refuse_waiting(model: nn.Module, caller: str) -> None:
    """Raise if the model was prepared without example inputs and has not been called, or is no module at all."""
    refuse_other(model, caller)
    if isinstance(model, Waiting):
        raise StageError(
            f"{caller}: the model was prepared without example inputs and has not seen any data, so it is not captured "
            "yet. Run calibrate(prepared, loader), or call it once, or give prepare_fx example_inputs."
        )
