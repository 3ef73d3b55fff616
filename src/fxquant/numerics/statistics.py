"""What calibration keeps of a tensor, whatever is decided later, and how a quantizer takes its range from that.

    kept_for(spec)     histogram, entropy, percentile  ->  a histogram
                       minmax                          ->  the extremes, which a histogram has as well
                       moving_average                  ->  the average, by its momentum
                       custom                          ->  the user's own observer, one for each quantizer
                       fixed, dynamic                  ->  nothing

So signs, bits, zero points and the search for a range are free until conversion. The tensors that share a quantizer are
observed one by one and merged, which for histograms and extremes gives the bits of one observer that saw them all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from fxquant.core.spec import Spec
from fxquant.numerics.channel_mean import ChannelMean
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers import Observer, make_observer

HISTOGRAM, EXTREMES = Spec(observer="histogram"), Spec(observer="minmax")


def kept_for(spec: Spec) -> Spec | None:
    """The spec of the observer that keeps what a range of `spec` is found from; None if nothing has to be."""
    if spec.dynamic or spec.observer == "fixed":
        return None
    if spec.observer == "custom":
        return spec
    if spec.observer == "moving_average":
        return Spec(observer="moving_average", momentum=spec.momentum)
    return EXTREMES if spec.observer == "minmax" else HISTOGRAM


def without_repeats(kept: Iterable[Spec]) -> list[Spec]:
    """Each statistic once, and no extremes beside a histogram, which has them."""
    unique = list(dict.fromkeys(kept))
    return [spec for spec in unique if spec != EXTREMES or HISTOGRAM not in unique]


def stored_at(sites: Sequence[str], kept: Spec) -> list[str]:
    """Under which names something is kept for a quantizer of these tensors: one for each, if it can be put together."""
    return ["_and_".join(sites)] if kept.observer == "custom" else [*sites]


def label(kept: Spec) -> str:
    """The end of the name of an observer, after that of its tensor."""
    if kept.observer == "custom":
        return f"custom_{'s' if kept.signed else 'u'}{kept.bits}_{'sym' if kept.symmetric else 'asym'}"
    if kept.observer == "moving_average":
        return f"moving_average_{kept.momentum:g}".replace(".", "p").replace("-", "m")
    return kept.observer


def mean_label(channels: int, axis: int) -> str:
    """The same for the means of its channels."""
    return f"mean_{channels}_last" if axis == -1 else f"mean_{channels}_{axis}"


class Statistics(nn.ModuleDict):
    """What is seen of the tensors of a graph, as `<tensor>_<label>`: quantizers that only observe, and means.

    Of a state dict it takes what it keeps; a model that was prepared for more targets has more.
    """

    def of(self, sites: Sequence[str], kept: Spec) -> list[Observer] | None:
        """The observers of some tensors that have this statistic; one, where it saw them all. None if one lacks."""
        found = [self._one(name, kept) for name in stored_at(sites, kept)]
        return None if None in found else [observer for observer in found if observer is not None]

    def _one(self, name: str, kept: Spec) -> Observer | None:
        for spec in (kept, HISTOGRAM) if kept == EXTREMES else (kept,):
            if f"{name}_{label(spec)}" in self:
                quantizer = self[f"{name}_{label(spec)}"]
                assert isinstance(quantizer, FakeQuant)
                return quantizer.observer
        return None

    def mean_of(self, site: str, channels: int, axis: int) -> ChannelMean | None:
        name = f"{site}_{mean_label(channels, axis)}"
        if name not in self:
            return None
        found = self[name]
        assert isinstance(found, ChannelMean)
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            if key.removeprefix(prefix).partition(".")[0] not in self:
                del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *args)


class Quantizers(nn.ModuleDict):
    """The quantizers of a decided graph, with the means beside them."""

    def read_statistics(
        self, state_dict: dict[str, Any], kept: str, own: str, sites: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Rewrite what a calibrated model saw of tensors into the state of the quantizers that observe them.

        Its keys begin with `kept`, those of the quantizers with `own`; `sites` are the tensors of each.
        """
        loaded = {key.removeprefix(kept): state_dict.pop(key) for key in [*state_dict] if key.startswith(kept)}
        for name, tensors in sites.items() if loaded else ():
            quantizer = self[name]
            assert isinstance(quantizer, FakeQuant)
            found = _load(quantizer.spec, tensors, loaded)
            if found is not None:
                plain = FakeQuant(found[0].spec, name)
                recall(plain, found)
                state_dict.update({f"{own}{name}.{key}": value for key, value in plain.state_dict().items()})


def _load(spec: Spec, tensors: Sequence[str], loaded: Mapping[str, Any]) -> list[Observer] | None:
    """The observers of some tensors as a state dict has them, all of one kind; None if there are none."""
    average = Spec(observer="moving_average", momentum=spec.momentum)
    for kept in (HISTOGRAM, EXTREMES, average):
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
            return found
    return None


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
