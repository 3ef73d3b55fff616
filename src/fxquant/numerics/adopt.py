"""Take over the state of a quantizer that calibrated (post-training) into one that trains.

Both have the same name in their models. What differs: the calibrated one has a scale that nothing learned, and its
observer may keep a histogram where training keeps a moving average. The range that the histogram gives is what is kept.
The scale of a frozen one, which algorithms may have moved, is where a learned one starts.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fxquant.config.spec import Spec
from fxquant.numerics.learned.base import Learned
from fxquant.numerics.observers.histogram import HistogramObserver
from fxquant.numerics.observers.table import Observer

_OBSERVED = ("low", "high", "batches", "sentinels")
_NEAR = 4.0  # algorithms move a scale by less; that of a grid with half the bits is off by more
Grid = tuple[Tensor, Tensor]


def adopt_tensors(module: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Leave the module's own tensors as they are: its range starts from the observer's."""
    state_dict.pop(f"{prefix}scale", None)
    state_dict.pop(f"{prefix}zero_point", None)
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            state_dict[prefix + name] = tensor.detach().clone()


def fixed_grid(state_dict: dict[str, Tensor], prefix: str) -> Grid | None:
    """(scale, zero_point) of a frozen quantizer; None where there is none."""
    scale, zero_point = (state_dict.get(f"{prefix}{name}") for name in ("scale", "zero_point"))
    return None if scale is None or zero_point is None else (scale, zero_point)


def adopt_grid(method: Learned, spec: Spec, grid: Grid) -> dict[str, Tensor]:
    """Return what is learned, by name, started from a fixed grid."""
    shape = tuple(grid[0].shape)
    own = {**method.parameters(shape), **method.buffers(shape)}
    method.start(own, *grid, spec)
    return own


def is_near(observer: Observer, grid: Grid, state_dict: dict[str, Tensor], prefix: str) -> bool:
    """Tell whether a fixed grid has about the steps that this observer would choose, with the state that it loads."""
    inside = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    found = copy.deepcopy(observer)
    found.load_state_dict(inside)
    if not found.seen:
        return False
    ratio = grid[0] / found.qparams()[0]
    return bool(((ratio <= _NEAR) & (ratio >= 1 / _NEAR)).all())


def adopt_observer(observer: nn.Module, spec: Spec, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Rewrite the state of another kind of observer into that of `observer`."""
    loaded = {name: state_dict[prefix + name] for name in _OBSERVED if prefix + name in state_dict}
    histogram = f"{prefix}counts" in state_dict
    if len(loaded) < len(_OBSERVED) or histogram == isinstance(observer, HistogramObserver):
        return
    if not histogram:
        state_dict.update({prefix + name: value for name, value in _from_range(spec, loaded).items()})
        return
    found = HistogramObserver(spec.with_(learn=None, observer="histogram"), "")
    names = (*_OBSERVED, "counts", "grid")
    found.load_state_dict({name: state_dict.pop(prefix + name) for name in names})
    state_dict.update({prefix + name: value for name, value in loaded.items()})
    if found.seen:
        state_dict[f"{prefix}low"], state_dict[f"{prefix}high"] = found.range()


def _from_range(spec: Spec, loaded: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a histogram that knows the extremes only."""
    made = HistogramObserver(spec.with_(learn=None, observer="histogram"), "")
    if int(loaded["batches"]):
        made.update(torch.stack((loaded["low"].reshape(()), loaded["high"].reshape(()))))
    return {**made.state_dict(), "batches": loaded["batches"], "sentinels": loaded["sentinels"]}
