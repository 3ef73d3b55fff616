"""What an engine is: a name, the target that it runs, whether it can run here, and how a model gets on to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fxquant.config.target import Target
from fxquant.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Something that runs a converted model: `convert_fx(prepared, engine=Engine(...))`.

    `target` gives the hardware, as data, that the engine has kernels for; a model that was prepared without a target is
    decided for it. `available` says whether the engine can run on this machine, and `hint` what to do if it cannot.
    `apply` is given a converted model, whose regions are QDQ graphs with their numbers filled in. It may change the
    model in place, and returns what runs (docs/adding_an_engine.md).
    """

    name: str
    target: Callable[[], Target]
    available: Callable[[], bool]
    apply: Callable[[nn.Module], nn.Module]
    hint: str = ""

    def __post_init__(self) -> None:
        if not self.name or self.name == "auto":
            raise ConfigError(f"Engine(name={self.name!r}): give it a name of its own.")
        for field in ("target", "available", "apply"):
            if not callable(getattr(self, field)):
                raise ConfigError(f"Engine {self.name!r}: {field} is {getattr(self, field)!r}. Give a function.")
