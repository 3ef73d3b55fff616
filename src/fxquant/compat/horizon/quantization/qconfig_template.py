"""Templates: rules that say how every op is quantized. Several in a tuple: the first that answers wins.

A table of sensitivity is rows whose first item is the name of an op, the most sensitive first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fxquant.config.check_fields import check_fields
from fxquant.config.qconfig import QConfig
from fxquant.config.rules import Site
from fxquant.config.spec import Spec
from fxquant.templates import most_sensitive

Setter = Callable[[str, str, object], QConfig | str | None]
Purpose = Literal["calibration", "qat"]
Table = Sequence[Sequence[object]]


@dataclass(frozen=True)
class Template:
    """Every op the same way, or those whose name is listed."""

    purpose: Purpose
    bits: int = 8
    names: frozenset[str] | None = None

    @property
    def answers_all(self) -> bool:
        """Whether it leaves no op to the setters behind it."""
        return self.names is None

    def at(self, site: Site) -> QConfig | None:
        """Return the qconfig at a place, or None for the next setter to answer."""
        return None if self.names is not None and not site.is_in(self.names) else self._qconfig

    def __call__(self, name: str, kind: str, op: object) -> QConfig | None:
        return self.at(Site(path=name, kind=kind, spelling=op))

    @property
    def _qconfig(self) -> QConfig:
        return QConfig(
            activation=Spec(
                bits=self.bits, learn="ste", observer="moving_average" if self.purpose == "qat" else "histogram"
            ),
            weight=Spec(granularity="per_channel", observer="minmax", learn="ste"),
        )


@dataclass(frozen=True)
class ModuleNameQconfigSetter:
    """A qconfig for each module that is named, and for what is in it. None leaves it in float."""

    qconfigs: Mapping[str, QConfig | None]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def names(self) -> frozenset[str]:
        """The modules that it is about."""
        return frozenset(filter(None, self.qconfigs))

    def __call__(self, name: str, kind: str, op: object) -> QConfig | str | None:
        inside = [key for key in self.qconfigs if not key or name == key or name.startswith(f"{key}.")]
        if not inside:
            return None
        return self.qconfigs[max(inside, key=len)] or "float"


default_calibration_qconfig_setter = Template("calibration")
default_qat_qconfig_setter = Template("qat")
calibration_8bit_weight_16bit_act_qconfig_setter = Template("calibration", 16)
qat_8bit_weight_16bit_act_qconfig_setter = Template("qat", 16)


def sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter(
    table: Table, topk: int | None = None, ratio: float | None = None
) -> Template:
    """16-bit activations for the most sensitive ops, for calibration. Put it before a default."""
    return Template("calibration", 16, most_sensitive(table, top_k=topk, ratio=ratio))


def sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter(
    table: Table, topk: int | None = None, ratio: float | None = None
) -> Template:
    """16-bit activations for the most sensitive ops, for training. Put it before a default."""
    return Template("qat", 16, most_sensitive(table, top_k=topk, ratio=ratio))


sensitive_op_8bit_weight_16bit_act_calibration_setter = sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter
sensitive_op_8bit_weight_16bit_act_qat_setter = sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter
