"""Take over the state of a quantizer that calibrated (post-training) into one that trains.

Both have the same name in their models. What differs: the calibrated one has a scale that nothing learned, and its
observer may keep a histogram where training keeps a moving average. The range that the histogram gives is what is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.config.spec import Spec
from fxquant.numerics.observers.histogram import HistogramObserver

_OBSERVED = ("low", "high", "batches", "sentinels")


def adopt_tensors(module: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Leave the module's own tensors as they are: its range starts from the observer's."""
    state_dict.pop(f"{prefix}scale", None)
    state_dict.pop(f"{prefix}zero_point", None)
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            state_dict[prefix + name] = tensor.detach().clone()


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
