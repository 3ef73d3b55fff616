"""Quark's observers: each is a name for a way of ours to find a range."""

from __future__ import annotations

from fxquant.compat.quark.types import QSchemeType
from fxquant.config.spec import Learn, ObserverKind


class ObserverBase:
    """A name for a way to find a range: `spec` says which of ours it is."""

    observer: ObserverKind = "minmax"
    scheme: QSchemeType | None = QSchemeType.per_tensor
    pow2 = False
    learn: Learn = "ste"


class PerTensorMinMaxObserver(ObserverBase): ...


class PerTensorHistogramObserver(ObserverBase):
    observer = "histogram"


class PerTensorHistogramObserverPro(PerTensorHistogramObserver): ...


class PerTensorMSEObserver(PerTensorHistogramObserver): ...


class PerTensorPercentileObserver(ObserverBase):
    observer = "percentile"


class PerTensorPowOf2MinMaxObserver(ObserverBase):
    pow2 = True


class PerTensorPowOf2MinMSEObserver(ObserverBase):
    observer = "histogram"
    pow2 = True


class PerChannelMinMaxObserver(ObserverBase):
    scheme = QSchemeType.per_channel


class PerChannelPowOf2MinMaxObserver(PerChannelMinMaxObserver):
    pow2 = True


class PerChannelPowOf2MinMSEObserver(PerChannelMinMaxObserver):
    observer = "histogram"
    pow2 = True


class PerGroupMinMaxObserver(ObserverBase):
    scheme = QSchemeType.per_group


class UniformScalingObserver(ObserverBase):
    scheme = None


class PlaceholderObserver(ObserverBase):
    scheme = None


class LSQObserver(ObserverBase):
    scheme = None
    learn = "lsq"


class TQTObserver(ObserverBase):
    scheme = None
    pow2 = True
    learn = "tqt"
