"""Optimizers that were made before `prepare_qat_fx`: they hold the float model's parameters, and train nothing.

torch.ao prepares a model in place, so code that was written for it may make the optimizer first. The model that is
trained here has parameters of its own, none of which such an optimizer knows.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator

from torch import nn
from torch.optim import Optimizer


def warn_of_old_optimizers(model: nn.Module) -> None:
    """Let each optimizer that holds parameters of a float model say so, if it steps where none of them has a gradient.

    Whoever trains the float model, too, hears nothing.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in _optimizers():
        if own.intersection(map(id, _parameters(optimizer))):
            optimizer.register_step_post_hook(_told_once(type(model).__name__))


def _optimizers() -> Iterator[Optimizer]:
    for found in gc.get_objects():
        if issubclass(type(found), Optimizer):  # not isinstance: an object may lie about its class, or fail
            yield found


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def _told_once(name: str) -> Callable[[Optimizer, tuple[object, ...], dict[str, object]], None]:
    told: list[bool] = []

    def tell(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not told and all(parameter.grad is None for parameter in _parameters(optimizer)):
            told.append(True)
            warnings.warn(
                f"this {type(optimizer).__name__} trains nothing: it was made before prepare_qat_fx, and none of its "
                f"parameters, those of the float {name}, has a gradient. Make it from prepared.parameters().",
                stacklevel=3,
            )

    return tell
