"""Modules that say to be of another class than they are, and classes that are derived from the one they say.

`isinstance(layer, nn.Linear)` in code around goes on working where a module of ours stands for a linear. But torch's
`fully_shard` and its parametrizations take `layer.__class__`, derive a class of their own, and put that on the module:
it would have the forward of nn.Linear then. So the module gets a class that is both, ours first.
"""

from __future__ import annotations

from torch import nn

_WORN, _OWN = "_fxquant_worn", "_fxquant_own"


def worn(module: nn.Module) -> type | None:
    """Return the class that was put on a module, derived from the one that it says; None if there is none."""
    found: type | None = module.__dict__.get(_WORN)
    return found


def wear(module: nn.Module, cls: type, said: type) -> None:
    """Put a class on a module that says to be of the class `said`, and let it stay what it is."""
    now = type(module)
    own: type = now.__dict__.get(_OWN, now)
    module.__dict__.pop(_WORN, None)
    if cls is said:
        cls = own
    elif issubclass(cls, said) and not issubclass(cls, own):
        module.__dict__[_WORN] = cls
        cls = _both(own, cls)
    object.__dict__["__class__"].__set__(module, cls)


def _both(own: type, cls: type) -> type:
    def new(_: type, *args: object, **kwargs: object) -> object:
        return object.__new__(made)  # copies ask for one of the class that is said

    made = type(cls.__name__, (own, cls), {"__module__": cls.__module__, "__new__": new, _OWN: own})
    return made
