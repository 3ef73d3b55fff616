"""What calibration keeps of a tensor, whatever is decided later, and how a quantizer takes its range from that.

    kept_for(spec)     what the row of its observer says (observers/table.py): a histogram, the extremes, which a
                       histogram has as well, their average, the user's own observer, or nothing

So signs, bits, zero points and the search for a range are free until conversion. The tensors that share a quantizer are
observed one by one and merged, which for histograms and extremes gives the bits of one observer that saw them all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from fxquant.config.spec import Spec
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.table import (
    OBSERVERS,
    Observer,
    keep_average,
    keep_extremes,
    keep_histogram,
    make_observer,
)

HISTOGRAM, EXTREMES = Spec(observer="histogram"), Spec(observer="minmax")
CHANNELS = Spec(observer="channels", granularity="per_channel", axis=1)
# what has the same and more, the least first
_INSIDE = {EXTREMES: (HISTOGRAM, CHANNELS), HISTOGRAM: (CHANNELS,)}


def kept_for(spec: Spec) -> Spec | None:
    """Return the spec of the observer that keeps what a range of `spec` is found from; None if nothing has to be."""
    return None if spec.dynamic else OBSERVERS[spec.observer].kept(spec)


def without_repeats(kept: Iterable[Spec]) -> list[Spec]:
    """Each statistic once, and no extremes beside a histogram, which has them."""
    unique = list(dict.fromkeys(kept))
    return [spec for spec in unique if not any(more in unique for more in _INSIDE.get(spec, ()))]


def stored_at(sites: Sequence[str], kept: Spec) -> list[str]:
    """Under which names something is kept for a quantizer of these tensors: one for each, if it can be put together."""
    return ["_and_".join(sites)] if kept.observer == "custom" else [*sites]


def label(kept: Spec) -> str:
    """Return the end of the name of an observer, after that of its tensor."""
    if kept.observer == "custom":
        return f"custom_{'s' if kept.signed else 'u'}{kept.bits}_{'sym' if kept.symmetric else 'asym'}"
    channels = f"_axis_{kept.axis}" if kept.granularity == "per_channel" else ""
    if kept.observer == "moving_average":
        return f"moving_average_{kept.momentum:g}".replace(".", "p").replace("-", "m") + channels
    return kept.observer + channels


class Statistics(nn.ModuleDict):
    """What is seen of the tensors of a graph, as `<tensor>_<label>`: quantizers that only observe, and Watchers.

    Of a state dict it takes what it keeps; a model that was prepared for more targets has more.
    """

    def of(self, sites: Sequence[str], kept: Spec) -> list[Observer] | None:
        """Return the observers of some tensors that have this statistic; one, where it saw them all.

        None if one lacks.
        """
        found = [self._one(name, kept) for name in stored_at(sites, kept)]
        return None if None in found else [observer for observer in found if observer is not None]

    def _one(self, name: str, kept: Spec) -> Observer | None:
        for spec in (kept, *_INSIDE.get(kept, ())):
            if f"{name}_{label(spec)}" in self:
                quantizer = self[f"{name}_{label(spec)}"]
                assert isinstance(quantizer, FakeQuant)
                return quantizer.observer
        return None

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, *args: object) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            if key.removeprefix(prefix).partition(".")[0] not in self:
                del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *args)


class Quantizers(nn.ModuleDict):
    """The quantizers of a decided graph."""

    def read_statistics(
        self, state_dict: dict[str, object], kept: str, own: str, sites: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Rewrite what a calibrated model saw of tensors into the state of the quantizers that observe them.

        Its keys begin with `kept`, those of the quantizers with `own`; `sites` are the tensors of each.
        """
        loaded = {key.removeprefix(kept): state_dict.pop(key) for key in [*state_dict] if key.startswith(kept)}
        for name, tensors in sites.items() if loaded else ():
            quantizer = self[name]
            assert isinstance(quantizer, FakeQuant)
            found = _load(quantizer.spec, tensors, loaded)
            if kept_for(quantizer.spec) is None:  # its range is known, so that calibration keeps nothing of it
                state_dict.update({f"{own}{name}.{key}": value for key, value in quantizer.state_dict().items()})
            elif found is not None:
                plain = FakeQuant(found[0].spec, name)
                recall(plain, found)
                state_dict.update({f"{own}{name}.{key}": value for key, value in plain.state_dict().items()})


def _load(spec: Spec, tensors: Sequence[str], loaded: Mapping[str, object]) -> list[Observer] | None:
    """Return the observers of some tensors as a state dict has them, all of one kind; None if there are none."""
    for kept in (keep_histogram(spec), CHANNELS, keep_extremes(spec), keep_average(spec)):
        found = [make_observer(kept, tensor) for tensor in tensors]
        states = [
            {
                name: loaded.get(f"{tensor}_{label(kept)}.activation_post_process.{name}")
                for name in observer.state_dict()
            }
            for tensor, observer in zip(tensors, found, strict=True)
        ]
        if all(value is not None for state in states for value in state.values()):
            for observer, state in zip(found, states, strict=True):
                observer.load_state_dict(state)
            return [_histogram_in(observer) for observer in found] if kept == CHANNELS else found
    return None


def _histogram_in(observer: Observer) -> Observer:
    made = make_observer(HISTOGRAM, observer.name)
    take_over(made, observer)
    return made


def recall(quantizer: FakeQuant, seen: Sequence[Observer]) -> None:
    """Give a quantizer what was seen of its tensors."""
    kept = kept_for(quantizer.spec)
    if quantizer.observer is None or kept is None or not seen:
        return
    if kept.observer == "custom":
        quantizer.activation_post_process = copy.deepcopy(seen[0])
        return
    merged = make_observer(kept, quantizer.name)
    for each in seen:
        same = make_observer(kept, each.name)  # a histogram may be there where extremes are all that is asked for
        take_over(same, each)
        merged.merge(same)
    take_over(quantizer.observer, merged)


def take_over(observer: Observer, other: Observer) -> None:
    """Become `other`, in what both remember."""
    found = dict(other.named_buffers())
    for name in dict(observer.named_buffers()):
        observer._buffers[name] = found[name].clone()
