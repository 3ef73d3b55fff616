"""The qconfigs and mappings that users reach for by name."""

from __future__ import annotations

from typing import Literal

from fxquant.config.qconfig import DYNAMIC, QConfig
from fxquant.config.qconfig_mapping import QConfigMapping
from fxquant.config.spec import Spec
from fxquant.errors import ConfigError
from fxquant.targets import by_name

Mode = Literal["static", "dynamic", "weight_only"]

_WEIGHT = Spec(granularity="per_channel", observer="minmax")

default_qconfig = QConfig(activation=Spec(signed=False, symmetric=False), weight=_WEIGHT)
default_dynamic_qconfig = QConfig(activation=DYNAMIC, weight=_WEIGHT)
weight_only_qconfig = QConfig(weight=_WEIGHT)
int4_weight_only_qconfig = QConfig(weight=Spec(bits=4, granularity="per_group", group_size=32, observer="histogram"))


def get_default_qconfig(backend: str | None = None, version: int = 0) -> QConfig:
    """Return the post-training static qconfig for a `backend`: "x86", "fbgemm", "qnnpack", "onednn" or another target.

    Without one, for what `set_march` names, else for x86. `version` is as torch.ao counts: 0 here, 0 or 1 for
    training; all of them mean the same.

    Example:
        >>> fq.get_default_qconfig("x86").weight.bits
        8
    """
    _check_version(version, (0,))
    return by_name(backend).qconfig


def get_default_qat_qconfig(backend: str | None = None, version: int = 1) -> QConfig:
    """Return the qconfig for training with a backend's grids: ranges of activations follow a moving average.

    `backend` and `version` are as for `get_default_qconfig`.

    Example:
        >>> fq.get_default_qat_qconfig("x86").weight.bits
        8
    """
    _check_version(version, (0, 1))
    target = by_name(backend)
    return QConfig(
        activation=target.activation.with_(observer="moving_average", learn="ste"),
        weight=target.weight.with_(observer="minmax", learn="ste"),
        bias=target.bias,
    )


def get_default_qat_qconfig_mapping(backend: str | None = None, version: int = 1) -> QConfigMapping:
    """Return a mapping that trains everything the target runs in int8 with quantization in the loop.

    `backend` and `version` are as for `get_default_qconfig`.

    Example:
        >>> prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping("x86"), (loader[0],))
    """
    return QConfigMapping().set_global(get_default_qat_qconfig(backend, version))


def get_default_qconfig_mapping(backend: str | None = None, version: int = 0) -> QConfigMapping:
    """Return a mapping that quantizes everything the target runs in int8.

    `backend` and `version` are as for `get_default_qconfig`.

    Example:
        >>> mapping = fq.get_default_qconfig_mapping("x86").set_module_name("head", None)  # None: stays in float
        >>> quantized = fq.quantize(model, loader, qconfig_mapping=mapping)
    """
    return QConfigMapping().set_global(get_default_qconfig(backend, version))


def _check_version(version: int, known: tuple[int, ...]) -> None:
    if version not in known:
        raise ConfigError(f"version={version!r} of the default qconfig is unknown. Known: {known}.")
